//! Programs that run in a network namespace of their own, where they change nothing of this host.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Number of the capability to change what belongs to a network namespace (capabilities(7)).
const CAP_NET_ADMIN: u32 = 12;
/// Version of the kernel's interface that has 64 bits of capabilities (capset(2)).
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Has a program start in a new network namespace, which ends with it. The program may change all of
/// that network, and nothing of this host's. It keeps all other rights of this process, such as those
/// to files.
///
/// A process that may not make network namespaces makes a user namespace with the new one inside,
/// where the program has no other capability. If the kernel or its policy refuses that too, the
/// program does not start, and [`Command::spawn`] returns the kernel's error.
pub fn isolate_network(command: &mut Command) {
    // SAFETY: between fork and exec `enter` only makes system calls. It allocates nothing and takes
    // no lock that another thread may hold.
    unsafe { command.pre_exec(enter) };
}

fn enter() -> io::Result<()> {
    if unshare(libc::CLONE_NEWNET).is_ok() {
        return Ok(());
    }
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)?;
    keep_net_admin()
}

fn unshare(namespaces: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is passed.
    answer(unsafe { libc::unshare(namespaces) }.into())
}

/// Keeps the one capability over the start of another program, of a user who is not root in the
/// namespace. A mapping to root would need another capability outside (CAP_SETFCAP).
fn keep_net_admin() -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        process: libc::c_int,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Sets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let only = 1 << CAP_NET_ADMIN;
    let header = Header { version: CAPABILITY_VERSION, process: 0 };
    let low = Sets { effective: only, permitted: only, inheritable: only };
    let high = Sets { effective: 0, permitted: 0, inheritable: 0 };
    let sets = [low, high];
    // SAFETY: both structures have the layout of capset(2) for this version, and outlive the call,
    // which reads them only.
    answer(unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const sets) })?;
    let (raise, capability) =
        (libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong, libc::c_ulong::from(CAP_NET_ADMIN));
    // SAFETY: no memory is passed.
    answer(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, capability, 0, 0) }.into())
}

/// The result of a system call that returns a negative number on an error.
fn answer(returned: libc::c_long) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
