//! One client that takes all ports towards a server, and a hundred other clients. `stateway bench
//! attacks` also measures the kernel.

use lab::{Contender, Greed, greed};

use crate::scenario::{alone, stateway_binary};

#[test]
fn one_greedy_client_keeps_nobody_from_a_server() {
    alone(|| {
        let binary = stateway_binary()?;
        for kind in Greed::ALL {
            let report = greed(&binary, Contender::Stateway, kind)?;
            println!("{report:?}");
            // If the greedy client keeps its connections open, the others wait until ports become
            // free. On a busy machine some of them give up before.
            let least = if kind == Greed::Open { 240 } else { 300 };
            let requests = report.requests;
            assert!(requests.asked == 300 && requests.served >= least, "{report:?}");
        }
        Ok(())
    });
}
