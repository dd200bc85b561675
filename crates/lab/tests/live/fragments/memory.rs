//! The memory of the process during and after a flood of fragments.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::{Attack, Datagrams, Lab, StatewaySpec, at_pace};

use crate::scenario::{beside_others, start, stateway, stateway_binary, stop_cleanly};

/// `ipfrag_high_thresh`, in bytes.
const LIMIT: u64 = 64 << 20;
/// The floods, of short and of long fragments. Each needs more memory than the limit allows.
const FLOODS: [(Attack, usize, u32); 2] =
    [(Attack::First, 180_000, 60_000), (Attack::NearlyComplete, 50_000, 25_000)];
/// The time that the process may take to return the memory after the flood.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn the_memory_of_a_flood_is_returned() {
    beside_others(|| {
        let binary = stateway_binary()?;
        let spec = StatewaySpec {
            more: format!("[tunables]\nipfrag_high_thresh = {LIMIT}\nipfrag_time = 2\n"),
            ..StatewaySpec::new(binary.clone(), 2)
        };
        let mut lab = start(spec)?;
        let resident = |lab: &Lab| stateway(lab).resident_bytes();
        let datagrams = Datagrams::new(&lab, &binary)?;
        let base = resident(&lab)?;
        let mut peak = base;
        for (attack, count, rate) in FLOODS {
            let frames = attack.frames(&lab, count, 1);
            let flood = datagrams.start_sending(&lab, &at_pace(&frames, rate))?;
            let end = Instant::now() + Duration::from_secs(count as u64) / rate;
            while Instant::now() < end {
                peak = peak.max(resident(&lab)?);
                sleep(Duration::from_millis(100));
            }
            flood.finish()?;
        }
        println!("{base} bytes at first, {peak} at most");
        assert!(peak > base + LIMIT / 2, "no flood: {peak} bytes");
        assert!(peak < base + 5 * LIMIT / 2, "{peak} bytes");
        let over = Instant::now();
        while resident(&lab)? > base + LIMIT / 2 {
            assert!(over.elapsed() < PATIENCE, "{} bytes", resident(&lab)?);
            sleep(Duration::from_millis(100));
        }
        println!("{} bytes after {:?}", resident(&lab)?, over.elapsed());
        stop_cleanly(&mut lab)
    });
}
