//! The host's settings for network devices, which policies change: read, written, and put back.
//!
//! A [`Session`] is a device with its journal. It plans by [`netpolicy`], and carries plans out.
//!
//! [`News`] tell when a plan has to be made again. A [`Lease`] is the right to keep a device at its
//! policy.
//!
//! Each setting has one interface: sysfs for the steering of packets and for a device's deferral of
//! interrupts, the family netdev of generic netlink for that of each NAPI, the family ethtool for
//! coalescing, `/proc/irq` for interrupts. Nothing reads the text of another tool.
//!
//! A device is never looked up twice by its name. Its directory in sysfs stays open, and each write
//! goes through it, or by the device's number. Before each write a check finds out whether both are
//! still the same device of this network namespace. So no other device gets the settings of one that
//! was renamed, has moved or has vanished.

mod coalescing;
mod device;
mod generic_netlink;
mod lease;
mod machine;
mod napis;
mod news;
mod session;
mod store;

pub use device::{Device, DeviceError, Whereabouts, name_of};
pub use generic_netlink::Refusal;
pub use lease::{Keeper, Lease};
pub use machine::{boot_id, busy_time};
pub use news::{News, Subject};
pub use session::{Done, Error, Session};
pub use store::{DEFAULT_DIRECTORY, Found, Lock, Store, StoreError};
