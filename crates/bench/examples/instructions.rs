//! Has a worker of the gateway do one kind of work, for a counter of instructions such as
//! `valgrind --tool=callgrind`, and prints how many packets or connections that were. Without
//! arguments it lists the kinds of work. `cargo xtask instructions` runs it.

use std::error::Error;
use std::io::Write;

use bench::instructions;

#[global_allocator]
static HEAP: netio::Heap = netio::Heap;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::stdout().lock();
    match arguments.as_slice() {
        [] => {
            for subject in instructions::all() {
                writeln!(out, "{subject}")?;
            }
        }
        [kind, name] => writeln!(out, "{}", instructions::run(kind, name)?)?,
        _ => return Err("usage: instructions [packet|connection|making NAME]".into()),
    }
    Ok(())
}
