//! The reasons for invalid packets, in the words of the kernel's log.

use conntrack::TrackingCause;
use conntrack::proto::tcp::Invalid;
use flow::DropReason;

/// True unless the kernel has logged another reason than ours. The words are those of Linux 6;
/// unknown words count as agreement.
pub fn agree(why: Option<TrackingCause>, log: &str) -> bool {
    let known = [
        "SEQ is over upper bound",
        "ACK is over upper bound",
        "invalid rst",
        "invalid, state",
        "bad checksum",
        "flag combination",
    ];
    let Some(theirs) = known.iter().find(|words| log.contains(**words)) else { return true };
    let (words, bound) = match why {
        Some(TrackingCause::Tcp { check: Invalid::SequenceOver { highest, .. }, .. }) => {
            ("SEQ is over upper bound", Some(highest))
        }
        Some(TrackingCause::Tcp { check: Invalid::AckOver { highest, .. }, .. }) => {
            ("ACK is over upper bound", Some(highest))
        }
        Some(TrackingCause::Tcp { check: Invalid::ResetUnder { .. }, .. }) => ("invalid rst", None),
        Some(TrackingCause::Tcp { check: Invalid::State { .. }, .. }) => ("invalid, state", None),
        Some(TrackingCause::Tcp { check: Invalid::Flags { .. }, .. }) => ("flag combination", None),
        Some(TrackingCause::Reason(DropReason::BadChecksum)) => ("bad checksum", None),
        _ => return false,
    };
    // The kernel prints the first number that is too high.
    *theirs == words
        && bound.is_none_or(|highest| log.contains(&format!("bound {} ", highest.plus(1))))
}
