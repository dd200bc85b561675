//! Lets established TCP flows talk through the tracker: work for a counter of instructions, such as
//! `valgrind --tool=callgrind`, and for a profiler. The differences between runs are the costs of
//! packets, and of making their headers.

use std::error::Error;

#[global_allocator]
static HEAP: netio::Heap = netio::Heap;

fn main() -> Result<(), Box<dyn Error>> {
    const USAGE: &str = "usage: segments FLOWS PACKETS [make]";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [flows, packets, rest @ ..] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let only_make = rest.first().is_some_and(|word| word == "make");
    Ok(bench::conntrack::talk(flows.parse()?, packets.parse()?, only_make)?)
}
