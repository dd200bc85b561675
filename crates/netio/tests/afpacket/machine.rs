//! Other machines: threads in network namespaces of their own.

use std::process::Command;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// Runs ip(8) in the namespace of the calling thread.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {problem}");
}

/// Waits until the kernel has noticed that the other end is up too. Until then it discards sent
/// frames, and reports them as sent.
pub fn wait_until_running(interface: &str) {
    while !netio::link_named(interface).unwrap().unwrap().running {
        thread::sleep(Duration::from_millis(1));
    }
    // The kernel has noticed, and has finished once it takes the next command.
    ip(&format!("link set {interface} up"));
}

type Job = Box<dyn FnOnce() + Send>;

/// Another machine: a thread in a network namespace of its own.
pub struct Machine {
    jobs: Sender<Job>,
    /// The thread's number, by which ip(8) finds the namespace.
    pub id: i32,
}

impl Machine {
    pub fn new() -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            // SAFETY: no memory is passed; only this thread moves.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            // SAFETY: no memory is passed.
            sender.send(unsafe { libc::gettid() }).unwrap();
            ip("link set lo up");
            inbox.iter().for_each(|job| job());
        });
        Self { jobs, id: receiver.recv().unwrap() }
    }

    /// Starts `job` there; its result comes through the channel. The jobs of one machine run one
    /// after the other.
    pub fn start<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (give, result) = mpsc::channel();
        // A test that has failed meanwhile does not wait for the result.
        self.jobs.send(Box::new(move || drop(give.send(job())))).unwrap();
        result
    }

    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(job).recv().unwrap()
    }

    /// Makes a cable from here (`inner`) to the machine (`outer`).
    pub fn connect(&self, inner: &str, outer: &str) {
        ip(&format!("link add {inner} type veth peer name {outer} netns {}", self.id));
        ip(&format!("link set {inner} up"));
        let outer = outer.to_owned();
        self.run(move || ip(&format!("link set {outer} up")));
        wait_until_running(inner);
    }
}
