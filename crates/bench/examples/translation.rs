//! Translates packets: work for a counter of instructions, such as `valgrind
//! --tool=callgrind`. The difference of two runs is what a packet, or a connection that is
//! opened and deleted, costs.

use std::error::Error;

#[global_allocator]
static HEAP: netio::Heap = netio::Heap;

fn main() -> Result<(), Box<dyn Error>> {
    const USAGE: &str = "usage: translation VARIANT established|new COUNT, where VARIANT is a \
                         line of `stateway bench rules` without the number of workers";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [variant, traffic, count] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let opens = match traffic.as_str() {
        "new" => true,
        "established" => false,
        _ => return Err(USAGE.into()),
    };
    Ok(bench::rules::translate(variant, opens, count.parse()?)?)
}
