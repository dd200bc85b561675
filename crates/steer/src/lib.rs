//! Receive packet steering: hash, indirection table, RPS maps, backlog, flow limit, balancer.
