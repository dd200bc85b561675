//! Connections that carry data for as long as a test needs, and the processes of a gateway.

use lab::{Lab, Namespace, Result};

use super::own_table;

/// Talks over this many connections to each address until the file exists. Prints the number of
/// connections over which everything came back, including the data sent after the file existed.
pub const TALKS: &str = "
import os, socket, sys, threading, time
end, count, *servers = sys.argv[1:]
well = []
def talk(s):
    said, is_last = 0, False
    while not is_last:
        is_last = os.path.exists(end)
        text, heard = b'%500d' % said, b''
        s.sendall(text)
        while len(heard) < len(text):
            data = s.recv(1000)
            if not data: return
            heard += data
        if heard != text: return
        said += 1
        time.sleep(0.01)
    well.append(said)
def run(s):
    try: talk(s)
    except OSError as error: print(error, flush=True)
sockets = [socket.create_connection((it, 7000), timeout=8) for it in servers * int(count)]
threads = [threading.Thread(target=run, args=(s,)) for s in sockets]
for thread in threads: thread.start()
print('talking', flush=True)
for thread in threads: thread.join()
print('well:', len(well), flush=True)
";

/// The process numbers of the gateway and of its children, outside of the lab.
pub fn gateway_and_children(lab: &Lab) -> Result<(u32, Vec<u32>)> {
    let inside = own_table(lab)?.0.to_string();
    let (mut gateway, mut parents) = (None, Vec::new());
    for process in processes_in(lab.gateway()) {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"));
        let status = status.unwrap_or_default();
        let field = |name: &str| {
            let mut values = status.lines().find_map(|line| line.strip_prefix(name))?.split('\t');
            values.next_back()
        };
        if field("NSpid:") == Some(&inside) {
            gateway = Some(process);
        }
        parents.push((process, field("PPid:").and_then(|parent| parent.parse().ok())));
    }
    let gateway = gateway.expect("the gateway runs");
    let children = parents.iter().filter(|(_, parent)| *parent == Some(gateway));
    Ok((gateway, children.map(|(process, _)| *process).collect()))
}

/// The numbers of the processes in a namespace, outside of the lab.
pub fn processes_in(namespace: &Namespace) -> impl Iterator<Item = u32> {
    let network = |process: u32| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let own = network(namespace.resident());
    let entries = std::fs::read_dir("/proc").expect("processes are listed").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(move |process| network(*process) == own)
}

/// Kills a process, which may have ended already.
pub fn kill(process: u32) {
    let mut kill = std::process::Command::new("kill");
    // It may have ended already.
    let _ = kill.args(["-KILL", &process.to_string()]).output();
}
