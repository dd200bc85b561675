//! Makes and reassembles datagrams: work for a counter of instructions, such as `valgrind
//! --tool=callgrind`. The differences between runs are the costs of datagrams, and of making their
//! frames. Datagrams of up to 45 pieces come 32 together, in the order of the argument. Larger ones
//! have pieces of 8 bytes and come one at a time, shuffled.

use std::error::Error;

use bench::defrag::Order;

#[global_allocator]
static HEAP: netio::Heap = netio::Heap;

fn main() -> Result<(), Box<dyn Error>> {
    const USAGE: &str = "usage: fragments PIECES sequential|within|over32 DATAGRAMS [make]";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pieces, order, datagrams, rest @ ..] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let order = match order.as_str() {
        "sequential" => Order::Sequential,
        "within" => Order::ShuffledWithin,
        "over32" => Order::Shuffled,
        _ => return Err(USAGE.into()),
    };
    let only_make = rest.first().is_some_and(|word| word == "make");
    Ok(bench::defrag::reassemble(pieces.parse()?, order, datagrams.parse()?, only_make)?)
}
