#!/usr/bin/python3
"""Loads firewalld's own rules for three zones, without its daemon and its bus."""
from firewall.core.fw import Firewall

fw = Firewall()
fw.start()
zones = fw.zone
zones.add_interface("home", "lan0")
zones.add_interface("dmz", "guest0")
zones.add_interface("public", "wan0")
zones.add_masquerade("public")
zones.add_forward_port("public", "8080", "tcp", "80", "198.51.100.20")
zones.add_forward_port("public", "30053", "udp", "53", "198.51.100.10")
zones.add_source("drop", "203.0.113.11")
zones.add_service("dmz", "http")
zones.add_icmp_block("dmz", "echo-request")
