//! `stateway ha`

use control::schema::{Done, SetRole, Sync};
use engine::Role;

use super::remote::{Json, Remote};
use crate::print::Output;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway ha status               active or standby
  stateway ha active               this gateway takes over
  stateway ha standby              the peer takes over

The notify script of keepalived calls these. Each gateway has copies of the other one's \
connections, which go on at once when their packets come. docs/high-availability.md has a whole \
example.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the part of this gateway.
    Status {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        json: Json,
    },
    /// Take over: own the connections of a peer that goes on standby or is silent.
    Active {
        #[command(flatten)]
        remote: Remote,
    },
    /// Give the connections of this gateway to an active peer. A bridge forwards nothing.
    Standby {
        #[command(flatten)]
        remote: Remote,
    },
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    match &args.action {
        Action::Status { remote, json } => {
            let sync: Sync = remote.client()?.get("/v1/sync")?;
            if json.json {
                return out.json(&sync);
            }
            out.line(format_args!("{}, peer {}", sync.role, sync.presence))
        }
        Action::Active { remote } => set(remote, Role::Active),
        Action::Standby { remote } => set(remote, Role::Standby),
    }
}

fn set(remote: &Remote, role: Role) -> anyhow::Result<()> {
    let body = SetRole { role: role.name().to_owned() };
    let done: Done = remote.client()?.put("/v1/sync/role", &body)?;
    match done.affected {
        0 => tell!("the gateway is {} already", role.name()),
        _ => tell!("the gateway is {} now", role.name()),
    }
    Ok(())
}
