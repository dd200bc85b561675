//! Makes and reassembles datagrams in many pieces of 8 bytes, in any order: work for a
//! counter of instructions, such as `valgrind --tool=callgrind`. The differences of runs
//! are what datagrams cost, and what of that is making their frames.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    const USAGE: &str = "usage: fragments PIECES DATAGRAMS [make]";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pieces, datagrams, rest @ ..] = arguments.as_slice() else { return Err(USAGE.into()) };
    let only_make = rest.first().is_some_and(|word| word == "make");
    Ok(bench::defrag::reassemble(pieces.parse()?, datagrams.parse()?, only_make)?)
}
