//! Asks the host's kernel, for the workers, what part the host has in packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::control::config::StartError;
use crate::control::host_guard::HostGuard;
use crate::path::host_questions::HostQuestion;

/// The longest wait for a question, so that the end of the gateway is noticed.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);

/// Answers questions by the host guard on a thread of its own, until `stopping`.
///
/// # Errors
/// The system's error when it has no room for a thread.
pub fn spawn(
    guard: Arc<dyn HostGuard>,
    questions: Receiver<HostQuestion>,
    stopping: Arc<AtomicBool>,
) -> Result<JoinHandle<()>, StartError> {
    let answer = move || {
        while !stopping.load(Ordering::Relaxed) {
            match questions.recv_timeout(LONGEST_SLEEP) {
                Ok(question) => {
                    let part = guard.part_of_host(&question.packet);
                    question.answer(part);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    let thread = std::thread::Builder::new().name("host answers".into());
    thread.spawn(answer).map_err(StartError::Thread)
}
