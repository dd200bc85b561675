"""The far ends of the cables of a namespace that forwards between "client0" and "server0": the
programs that import this play the hosts at "client1" and "server1"."""
import socket
import struct

ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_STATISTICS = 263, 6
SIDES = ("client", "server")


def cable(name, protocol=ETH_P_ALL):
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
    opened.bind((name, protocol))
    opened.setblocking(False)
    return opened


def far_ends():
    return {side: cable(f"{side}1") for side in SIDES}


def station(name):
    with open(f"/sys/class/net/{name}/address") as file:
        return bytes.fromhex(file.read().strip().replace(":", ""))


def stations():
    """The link addresses of the gateway's ends."""
    return {side: station(f"{side}0") for side in SIDES}


def lost(ends):
    """The number of frames that the kernel has lost since the last call: in front of these sockets,
    or in the queues of its CPUs."""
    statistics = [end.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8) for end in ends]
    with open("/proc/net/softnet_stat") as file:
        dropped = sum(int(line.split()[1], 16) for line in file)
    before, lost.dropped = lost.dropped, dropped
    return dropped - before + sum(struct.unpack("II", it)[1] for it in statistics)


lost.dropped = 0


def received(end):
    """The frames that have arrived, without those that were sent here."""
    while True:
        try:
            frame, address = end.recvfrom(65536)
        except BlockingIOError:
            return
        if address[2] != socket.PACKET_OUTGOING:
            yield frame
