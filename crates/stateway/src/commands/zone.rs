//! `stateway zone`

use std::path::PathBuf;

use control::schema::{Done, Names, SetZones, Zone, Zones};
use engine::ZoneBook;

use super::remote::{Json, Remote};
use crate::config::Configuration;
use crate::errors::UsageError;
use crate::print::{Align, Output, Table, count, things};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway zone list
  stateway zone set 10 max_connections=5000 timeout_policy=short
  stateway zone set 10 nf_conntrack_udp_timeout=10 half_open_per_source=default
  stateway zone add 12 vlans=12,13
  stateway zone delete 12
  stateway zone load -c gateway.toml      all zones and policies of a file, and no others

All zones change at once. Connections stay in the zone in which they were opened. A change \
holds until the gateway stops; [[zone]] in its configuration makes it last.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the zones with their limits and connections.
    List {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        json: Json,
    },
    /// Change a zone.
    Set {
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        remote: Remote,
    },
    /// Add a zone behind the others.
    Add {
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        remote: Remote,
    },
    /// Delete a zone. Its packets then belong to other zones; its connections stay until they end.
    Delete {
        /// Number of the zone.
        zone: u16,
        #[command(flatten)]
        remote: Remote,
    },
    /// Load zones and timeout policies from a configuration, and nothing else of it.
    Load {
        /// The configuration.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        remote: Remote,
    },
}

/// Changes to a zone.
#[derive(Debug, clap::Args)]
struct Change {
    /// Number of the zone.
    zone: u16,
    /// Keys of a zone in the configuration with their values, including timeouts; lists with
    /// commas. KEY=default removes a key.
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<String>,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    match &args.action {
        Action::List { remote, json } => {
            let zones: Zones = remote.client()?.get("/v1/zones")?;
            if json.json { out.json(&zones)? } else { table(&zones.zones).print(out)? }
        }
        Action::Set { change, remote } => {
            change.check()?;
            edit(remote, |zones| {
                let at = place(zones, change.zone)?;
                change.apply(&mut zones[at])
            })?;
            tell!("zone {} changed", change.zone);
        }
        Action::Add { change, remote } => {
            change.check()?;
            edit(remote, |zones| {
                zones.push(Zone { zone: change.zone, ..Zone::default() });
                zones.last_mut().map_or(Ok(()), |zone| change.apply(zone))
            })?;
            tell!("zone {} added", change.zone);
        }
        Action::Delete { zone, remote } => {
            edit(remote, |zones| {
                let at = place(zones, *zone)?;
                zones.remove(at);
                Ok(())
            })?;
            tell!("zone {zone} deleted");
        }
        Action::Load { config, remote } => {
            let mut config = Configuration::load(config)?;
            // The gateway itself reports interfaces that it does not have.
            config.find_links();
            let names: Vec<_> =
                config.interfaces.iter().map(|it| it.own_name().to_owned()).collect();
            let book = ZoneBook {
                revision: 0,
                timeout_policies: config.timeout_policies,
                zones: config.zones,
            };
            let Done { affected, .. } = put(remote, &SetZones::new(&book, &names))?;
            tell!("{} now", things(affected, "zone"));
        }
    }
    Ok(())
}

/// Changes the present zones, unless another client changes them meanwhile.
fn edit(
    remote: &Remote,
    change: impl FnOnce(&mut Vec<Zone>) -> Result<(), UsageError>,
) -> anyhow::Result<()> {
    let Zones { revision, timeout_policies, mut zones, .. } = remote.client()?.get("/v1/zones")?;
    change(&mut zones)?;
    put(remote, &SetZones { revision: Some(revision), timeout_policies, zones })?;
    Ok(())
}

fn put(remote: &Remote, zones: &SetZones) -> anyhow::Result<Done> {
    Ok(remote.client()?.put("/v1/zones", zones)?)
}

fn place(zones: &[Zone], number: u16) -> Result<usize, UsageError> {
    let what = || {
        UsageError(format!(
            "there is no zone {number}; `stateway zone list` shows all, and `stateway zone add` makes one"
        ))
    };
    zones.iter().position(|zone| zone.zone == number).ok_or_else(what)
}

impl Change {
    /// Checks a change as far as possible without the gateway.
    fn check(&self) -> Result<(), UsageError> {
        self.apply(&mut Zone::default())
    }

    fn apply(&self, zone: &mut Zone) -> Result<(), UsageError> {
        self.settings.iter().try_for_each(|setting| {
            set(zone, setting).map_err(|what| UsageError(format!("{setting}: {what}")))
        })
    }
}

/// Applies `KEY=VALUE`.
fn set(zone: &mut Zone, setting: &str) -> Result<(), String> {
    let (key, value) = setting.split_once('=').ok_or("is not KEY=VALUE")?;
    let value = (value != "default").then_some(value);
    let number =
        |value: &str| value.parse::<u64>().map_err(|_| format!("{value:?} is not a whole number"));
    match key {
        "interfaces" => {
            let names = |value: &str| value.split(',').map(str::to_owned).collect();
            zone.interfaces = value.map(names);
        }
        "vlans" => {
            let vlan = |vlan: &str| vlan.parse().map_err(|_| format!("{vlan:?} is not a VLAN"));
            let vlans = value.map(|value| value.split(',').map(vlan).collect());
            zone.vlans = vlans.transpose()?;
        }
        "max_connections" => zone.max_connections = value.map(number).transpose()?,
        "timeout_policy" => zone.timeout_policy = value.map(str::to_owned),
        _ => {
            let tunable = match key {
                "half_open_per_source" | "syn_proxy_half_open" => format!("stateway_{key}"),
                timeout if timeout.contains("_timeout") => timeout.to_owned(),
                _ => {
                    return Err("known here: interfaces, vlans, max_connections, \
                                half_open_per_source, syn_proxy_half_open, timeout_policy and \
                                timeouts of tracking"
                        .to_owned());
                }
            };
            let new = value.map(number).transpose()?;
            let others = zone.tunables.iter().filter(|(name, _)| *name != tunable);
            let changed: Names = others.chain(new.map(|new| (tunable.as_str(), new))).collect();
            zone.tunables = changed;
        }
    }
    Ok(())
}

fn table(zones: &[Zone]) -> Table {
    let mut table = Table::new(&[
        ("zone", Align::Right),
        ("interfaces", Align::Left),
        ("vlans", Align::Left),
        ("connections", Align::Right),
        ("limit", Align::Right),
        ("timeout policy", Align::Left),
        ("differs in", Align::Left),
    ]);
    for zone in zones {
        let vlans =
            |vlans: &Vec<u16>| vlans.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let tunables = zone.tunables.iter().map(|(name, value)| format!("{name}={value}"));
        table.row([
            zone.zone.to_string(),
            zone.interfaces.as_ref().map_or("all".to_owned(), |names| names.join(",")),
            zone.vlans.as_ref().map_or("all".to_owned(), vlans),
            count(zone.connections),
            zone.max_connections.map_or("-".to_owned(), count),
            zone.timeout_policy.clone().unwrap_or_else(|| "-".to_owned()),
            tunables.collect::<Vec<_>>().join(" "),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_zone_are_read_as_in_the_configuration() {
        let mut zone = Zone { zone: 3, ..Zone::default() };
        for setting in [
            "interfaces=lan0,wan0",
            "vlans=0,7",
            "max_connections=9",
            "timeout_policy=short",
            "half_open_per_source=5",
            "nf_conntrack_udp_timeout=7",
            "nf_conntrack_udp_timeout=8",
        ] {
            set(&mut zone, setting).unwrap();
        }
        assert_eq!(zone.interfaces, Some(vec!["lan0".into(), "wan0".into()]));
        assert_eq!((zone.vlans.clone(), zone.max_connections), (Some(vec![0, 7]), Some(9)));
        assert_eq!(zone.timeout_policy.as_deref(), Some("short"));
        let tunables: Vec<_> = zone.tunables.iter().collect();
        assert_eq!(
            tunables,
            [("stateway_half_open_per_source", 5), ("nf_conntrack_udp_timeout", 8)]
        );
        for key in ["interfaces", "vlans", "max_connections", "timeout_policy"] {
            set(&mut zone, &format!("{key}=default")).unwrap();
        }
        set(&mut zone, "half_open_per_source=default").unwrap();
        set(&mut zone, "nf_conntrack_udp_timeout=default").unwrap();
        assert_eq!(zone, Zone { zone: 3, ..Zone::default() });
        for wrong in
            ["vlans", "vlans=", "vlans=x", "id=4", "nf_conntrack_max=4", "max_connections=-1"]
        {
            assert!(set(&mut zone, wrong).is_err(), "{wrong}");
        }
    }
}
