//! One client that wants all ports towards a server, and a hundred others.
//! `stateway bench attacks` measures the kernel beside it.

use lab::{Contender, Greed, greed};

use crate::scenario::{alone, stateway_binary};

#[test]
fn one_greedy_client_keeps_nobody_from_a_server() {
    alone(|| {
        let binary = stateway_binary()?;
        for kind in Greed::ALL {
            let report = greed(&binary, Contender::Stateway, kind)?;
            println!("{report:?}");
            // Where the greedy client keeps its connections open, others wait for ports that close,
            // and on a busy machine some of them wait longer than they are patient.
            let least = if kind == Greed::Open { 240 } else { 300 };
            let requests = report.requests;
            assert!(requests.asked == 300 && requests.served >= least, "{report:?}");
        }
        Ok(())
    });
}
