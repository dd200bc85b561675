#!/usr/bin/env python3
"""Loads rulesets into a namespace that forwards, sends packets and reports what happened to each.

The namespace forwards between "client0" and "server0"; the other ends of these cables are
"client1" and "server1". The program takes the number of the CPU to run on, and a file. Each line
of the file is a case in JSON: "rules" in nft's syntax, and "packets" with a "side" and a "frame"
(hexadecimal) each; no two frames of a case end with the same eight bytes.

It prints a line for each case: the "rules" that nft accepted, and nft's listing of them "before"
and "after" the packets. A listing is null if nft fails an assertion, as some versions do with raw
payloads. For each packet the line has the time of sending in microseconds, the frame that came
"out", its side, and the "answer" that the sender got.

The program does not sleep: a frame behind all others shows on each cable that these have arrived.
"""
import ctypes
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import time

from cables import SIDES, cable, far_ends, lost, received, stations

# An experimental EtherType (IEEE Std 802). The kernel does not forward it.
ETH_P_MARK = 0x88B5
# The time in seconds that a mark may take.
PATIENCE = 5
# How often a case is played until the kernel, on a busy machine, loses no frame of it.
TRIES = 5
# Messages of nft about rules whose parts exclude each other; such rules are left out.
EXCLUDED = (
    "conflicting protocols",
    "you cannot use tcp reset",
    "incompatible icmp match",
    "cannot use exthdr with",
)
# The factor from a frame's number to its sequence numbers, which are at most a little larger.
NUMBERED = 100_000
MAC = bytes.fromhex("02005e005301")


class Cables:
    def __init__(self):
        self.far = far_ends()
        self.near = {side: cable(f"{side}0", ETH_P_MARK) for side in SIDES}
        self.macs = stations()
        self.marks = 0

    def lost(self):
        return lost([*self.far.values(), *self.near.values()])

    def mark(self, source, target, others):
        """Sends a mark to another socket and waits for it; other frames go to `others`."""
        self.marks += 1
        frame = b"\xff" * 6 + MAC + struct.pack("!HQ", ETH_P_MARK, self.marks) + bytes(40)
        source.send(frame)
        until = time.monotonic() + PATIENCE
        while True:
            found = False
            for came in received(target):
                if came == frame:
                    found = True
                elif came[12:14] != frame[12:14]:
                    others(came)
            if found:
                return
            left = until - time.monotonic()
            if left < 0:
                sys.exit("a frame is lost between two ends of a cable")
            select.select([target], [], [], left)

    def play(self, packets):
        out = {side: [] for side in SIDES}
        sent = []
        for packet in packets:
            side, frame = packet["side"], bytes.fromhex(packet["frame"])
            sent.append(time.monotonic_ns() // 1000)
            self.far[side].send(self.macs[side] + frame[6:])
        for side in SIDES:
            self.mark(self.far[side], self.near[side], lambda frame: None)
        for side in SIDES:
            self.mark(self.near[side], self.far[side], out[side].append)
        # The kernel's own answers are resets, or quote the whole packet that they answer.
        passed, answers, resets = {}, {}, set()
        for side in SIDES:
            for frame in out[side]:
                kind = answer(frame)
                if kind is None:
                    passed[frame[-8:]] = (side, frame)
                elif kind == "reset":
                    resets.add((side, ends(frame, 1), number_of_reset(frame)))
                else:
                    answers[(side, frame[-8:])] = kind
        told = []
        for at, packet in zip(sent, packets):
            side, frame = packet["side"], bytes.fromhex(packet["frame"])
            came = passed.get(frame[-8:])
            said = answers.get((side, frame[-8:]))
            number = int.from_bytes(frame[-8:])
            if (side, ends(frame, 0), number) in resets:
                said = "reset"
            told.append({
                "at": at,
                "out": came and came[1].hex(),
                "side": came and came[0],
                "answer": said,
            })
        return told


def transport(frame):
    """The protocol, the offset of its header, and the addresses."""
    if frame[12:14] == b"\x08\x00":
        return frame[23], 14 + (frame[14] & 15) * 4, frame[26:34]
    if frame[12:14] == b"\x86\xdd":
        return frame[20], 54, frame[22:54]
    return None, 0, b""


def ends(frame, swapped):
    protocol, at, addresses = transport(frame)
    if protocol != 6:
        return None
    half = len(addresses) // 2
    pair = [addresses[:half] + frame[at:at + 2], addresses[half:] + frame[at + 2:at + 4]]
    return tuple(reversed(pair) if swapped else pair)


def number_of_reset(frame):
    """Both sequence numbers of a frame contain its number; a reset copies one of them."""
    _, at, _ = transport(frame)
    sequence, acknowledged = struct.unpack_from("!II", frame, at + 4)
    return (sequence or acknowledged) // NUMBERED


def answer(frame):
    """The kind of answer that the kernel sent in this frame; None for a forwarded frame."""
    protocol, at, _ = transport(frame)
    if protocol == 1 and frame[at] in (3, 11, 12):
        return f"icmp {frame[at]} {frame[at + 1]}"
    if protocol == 58 and frame[at] in (1, 2, 3, 4):
        return f"icmpv6 {frame[at]} {frame[at + 1]}"
    # The SYNs of the tests have an option, a reset of the kernel has none.
    if protocol == 6 and frame[at + 12] >> 4 == 5:
        return "reset"
    return None


class Nft:
    """libnftables in a separate process that serves all commands. A process for each command would
    cost four times as much. Some versions abort while they list their own rulesets."""

    JSON = 1 << 4

    def __init__(self, file):
        self.file = file
        self.start()

    def start(self):
        self.pipe, end = socket.socketpair()
        self.number = os.fork()
        if self.number:
            end.close()
            return
        self.pipe.close()
        # Hides the message of a failed assertion.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with end.makefile("rwb") as orders:
            while order := orders.readline():
                orders.write(json.dumps(carry_out(*json.loads(order))).encode() + b"\n")
                orders.flush()
        os._exit(0)

    def run(self, text, flags=0):
        """Returns whether the command succeeded and its output, or None if the process aborted."""
        with open(self.file, "w") as file:
            file.write(text)
        try:
            with self.pipe.makefile("rwb") as orders:
                orders.write(json.dumps([self.file, flags]).encode() + b"\n")
                orders.flush()
                told = orders.readline()
        except ConnectionError:
            told = b""
        if told:
            return json.loads(told)
        self.pipe.close()
        _, status = os.waitpid(self.number, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGABRT:
            sys.exit(f"the library of nft has ended with {status}")
        self.start()
        return None


def carry_out(file, flags):
    """Runs a file of commands (libnftables(3))."""
    library = ctypes.CDLL("libnftables.so.1")
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    library.nft_ctx_buffer_output(context)
    library.nft_ctx_buffer_error(context)
    library.nft_ctx_output_set_flags(context, flags)
    failed = library.nft_run_cmd_from_filename(context, file.encode())
    output = library.nft_ctx_get_output_buffer(context).decode()
    error = library.nft_ctx_get_error_buffer(context).decode()
    library.nft_ctx_free(context)
    return [not failed, error if failed else output]


def load(nft, rules):
    lines = rules.splitlines()
    while True:
        done = nft.run("flush ruleset\n" + "\n".join(lines) + "\n")
        works, said = done or (False, "nft aborts")
        if works:
            return "\n".join(lines)
        # Lines count from 1, and the first is not one of these.
        told = re.findall(rf"^{re.escape(nft.file)}:(\d+):(.*)$", said, re.MULTILINE)
        excluded = {int(number) - 2 for number, what in told if any(it in what for it in EXCLUDED)}
        if not excluded:
            sys.exit(f"{said}\n" + "\n".join(lines))
        lines = [line for number, line in enumerate(lines) if number not in excluded]


def listed(nft):
    done = nft.run("list ruleset\n", Nft.JSON)
    if done is None:
        return None
    works, said = done
    return said if works else sys.exit(said)


def forget():
    """Deletes all connections (nfnetlink: subsystem 1, message 2)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as netlink:
        netlink.send(struct.pack("=IHHII4x", 20, 0x102, 5, 1, 0))
        error, = struct.unpack_from("=i", netlink.recv(4096), 16)
        if error:
            sys.exit(f"connections are not deleted: {os.strerror(-error)}")


def main():
    # One CPU keeps frames in order.
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [allowed[int(sys.argv[1]) % len(allowed)]])
    nft = Nft(sys.argv[2] + ".nft")
    cables = Cables()
    with open(sys.argv[2]) as file:
        cases = [json.loads(line) for line in file]
    for case in cases:
        for _ in range(TRIES):
            rules = load(nft, case["rules"])
            forget()
            before = listed(nft)
            cables.lost()
            told = cables.play(case["packets"])
            if not cables.lost():
                break
        else:
            sys.exit("the kernel loses frames in its queues")
        after = listed(nft)
        case = {"rules": rules, "before": before, "packets": told, "after": after}
        case["cpu"], = os.sched_getaffinity(0)
        case["ahead"] = time.time_ns() - time.monotonic_ns()
        case["zone"] = time.localtime().tm_gmtoff
        print(json.dumps(case))


main()
