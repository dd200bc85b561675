#!/usr/bin/env python3
"""Lets the kernel track packets, in a network namespace of its own.

Reads frames as lines of hexadecimal digits. Prints "class", the identification (IPv4) and
the class of each, and then "state", the client's port and the state of each association.
"""
import json
import socket
import subprocess
import sys

RULES = """
table ip judge {
  set new { typeof ip id; flags dynamic; size 65535; }
  set established { typeof ip id; flags dynamic; size 65535; }
  set invalid { typeof ip id; flags dynamic; size 65535; }
  chain prerouting {
    type filter hook prerouting priority 0;
    ct state new add @new { ip id }
    ct state established add @established { ip id }
    ct state invalid add @invalid { ip id }
  }
}
"""


def run(*command, text=None):
    return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout


frames = [bytes.fromhex(line) for line in sys.stdin]
own_mac = ":".join(f"{byte:02x}" for byte in frames[0][:6])
run("ip", "link", "add", "in0", "address", own_mac, "type", "veth", "peer", "name", "out0")
run("ip", "link", "add", "sink0", "arp", "off", "type", "veth", "peer", "name", "sink1")
for interface in ["in0", "out0", "sink0", "sink1"]:
    run("ip", "link", "set", interface, "up")
run("ip", "address", "add", "203.0.113.1/32", "dev", "sink0")
run("ip", "route", "add", "default", "dev", "sink0")
for name, value in [
    ("ipv4/ip_forward", 1),
    ("ipv4/conf/all/rp_filter", 0),
    ("ipv4/conf/in0/rp_filter", 0),
]:
    with open(f"/proc/sys/net/{name}", "w") as file:
        file.write(str(value))
run("nft", "-f", "-", text=RULES)
for state in ["closed", "cookie_wait", "cookie_echoed", "shutdown_sent", "shutdown_recd",
              "shutdown_ack_sent", "heartbeat_sent", "established"]:
    with open(f"/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_{state}", "w") as file:
        file.write("600")
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
    out.bind(("out0", 0))
    for frame in frames:
        out.send(frame)
for class_ in ["new", "established", "invalid"]:
    listed = json.loads(run("nft", "-j", "list", "set", "ip", "judge", class_))
    for number in listed["nftables"][1]["set"].get("elem", []):
        print("class", number, class_)
for line in run("conntrack", "-L", "-p", "sctp").splitlines():
    fields = line.split()
    # Either end may have opened it; the client's port is the higher one.
    ports = [int(field[6:]) for field in fields if field.startswith("sport=")]
    print("state", max(ports), fields[3])
