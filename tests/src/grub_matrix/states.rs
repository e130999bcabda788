//! The environments that the model and real GRUB are asked about.

use os_proto::env_block::{Env, SIGNATURE, SIZE};
use os_proto::layout::{STATE_512, Slot};
use std::sync::Arc;

/// A disk's boot state.
pub struct State {
    /// What it is.
    pub name: String,
    /// `env1`, `None` = no such file.
    pub env1: Option<Vec<u8>>,
    /// `env2`, `None` = no such file.
    pub env2: Option<Vec<u8>>,
    /// Whether slot A has a kernel.
    pub a_has_kernel: bool,
    /// Whether the disk refuses writes.
    pub read_only: bool,
    /// Whether it is about how GRUB reads and writes blocks that no agent leaves.
    pub odd: bool,
    /// os-state and both slots as a power cut left them, instead of new ones.
    pub crash: Option<Crash>,
}

/// Partitions as a power cut left them.
pub struct Crash {
    /// os-state, from its first byte.
    pub state: Vec<u8>,
    /// Slots A and B, as long as their partitions or shorter.
    pub slots: [Arc<Vec<u8>>; 2],
}

/// `count` disks that power cuts leave behind recorded updates.
///
/// # Errors
/// When the recording cannot be made.
pub fn crash_states(count: usize) -> anyhow::Result<Vec<State>> {
    let samples = os_agent::crashtest::samples(count)?;
    Ok(samples
        .into_iter()
        .map(|s| {
            let env = |at: u64| {
                let at = at as usize;
                s.state.get(at..at + SIZE).map(<[u8]>::to_vec)
            };
            State {
                env1: env(STATE_512.env1),
                env2: env(STATE_512.env2),
                name: s.name,
                a_has_kernel: true,
                read_only: false,
                odd: false,
                crash: Some(Crash {
                    state: s.state,
                    slots: s.slots,
                }),
            }
        })
        .collect())
}

fn filled(body: &[u8], fill: u8) -> Vec<u8> {
    let mut b = [SIGNATURE, body].concat();
    b.resize(SIZE, fill);
    b
}

fn text(body: &str) -> Vec<u8> {
    filled(body.as_bytes(), b'#')
}

/// All of them.
pub fn states() -> Vec<State> {
    let committed = |s| Env::committed(s, 1).encode().to_vec();
    let armed = |cur, left| {
        let e = Env::committed(cur, 4_294_967_294).armed(Slot::other(cur));
        Env {
            left: Some(left),
            ..e
        }
        .encode()
        .to_vec()
    };
    let a = || Some(committed(Slot::A));
    let b = || Some(committed(Slot::B));
    let full = format!("x={}\ncur=A\ntry=B\n", "y".repeat(SIZE - 25 - 2 - 1 - 12 - 7));
    let mut all = Vec::new();
    let mut add = |name: &str, env1, env2| {
        all.push(State {
            name: name.to_owned(),
            env1,
            env2,
            a_has_kernel: true,
            read_only: false,
            odd: false,
            crash: None,
        });
    };
    add("committed A", a(), a());
    add("committed B", b(), b());
    add("trial of B 3 left", Some(armed(Slot::A, 3)), a());
    add("trial of B 2 left", Some(armed(Slot::A, 2)), a());
    add("trial of B 1 left", Some(armed(Slot::A, 1)), a());
    add("trial of B 0 left", Some(armed(Slot::A, 0)), a());
    add("trial of A 1 left", Some(armed(Slot::B, 1)), b());
    add("env1 missing env2 armed", None, Some(armed(Slot::B, 3)));
    add("env1 empty", Some(Vec::new()), b());
    add("env1 zeros", Some(vec![0; SIZE]), b());
    add("env1 header only", Some(SIGNATURE.to_vec()), b());
    add(
        "env1 garbage",
        Some((0..SIZE).map(|i| (i * 37 % 251) as u8).collect()),
        b(),
    );
    add(
        "env1 cur C env2 armed",
        Some(text("cur=C\ntry=A\nleft=3\n")),
        Some(armed(Slot::B, 3)),
    );
    add("both missing", None, None);
    add("both garbage", Some(vec![b'#'; SIZE]), Some(vec![0xff; SIZE]));
    add("try is cur", Some(text("cur=B\ntry=B\nleft=3\n")), a());
    add("left 9", Some(text("cur=A\ntry=B\nleft=9\n")), a());
    add("left empty", Some(text("cur=A\ntry=B\nleft=\n")), a());
    add("try missing", Some(text("cur=B\nleft=3\n")), a());
    add(
        "a comment of somebody",
        Some(text("# hello\ncur=A\n#x=y\ntry=B\nleft=3\n")),
        a(),
    );
    // The rest of GRUB's reading, where writing and reading do not meet.
    add("left twice", Some(text("cur=A\ntry=B\nleft=3\nleft=3\n")), a());
    add(
        "left twice first empty",
        Some(text("left=\ncur=A\ntry=B\nleft=2\n")),
        a(),
    );
    add("left escaped", Some(text("cur=A\ntry=B\nleft=\\3\n")), a());
    add("left with NUL", Some(text("cur=A\ntry=B\nleft=2\0junk\n")), a());
    add("name with NUL", Some(text("cur=A\ntry=B\nleft\0x=2\n")), a());
    add(
        "line without equals",
        Some(text("junk\ncur=A\ntry=B\nleft=2\n")),
        b(),
    );
    add(
        "carriage returns",
        Some(text("cur=A\r\ntry=B\r\nleft=3\r\n")),
        b(),
    );
    add("full block", Some(text(&format!("{full}left=3\n"))), a());
    add(
        "filled with zeros",
        Some(filled(b"cur=A\ntry=B\nleft=3\n", 0)),
        a(),
    );
    let mut long = committed(Slot::A);
    long.extend([b'#'; 513]);
    add("env1 of 1025 bytes", Some(long), b());
    all.push(State {
        name: "both lost and A has no kernel".to_owned(),
        env1: None,
        env2: None,
        a_has_kernel: false,
        read_only: false,
        odd: false,
        crash: None,
    });
    all.push(State {
        name: "the disk refuses the count".to_owned(),
        env1: Some(armed(Slot::A, 3)),
        env2: a(),
        a_has_kernel: true,
        read_only: true,
        odd: false,
        crash: None,
    });
    const ODD: [&str; 10] = [
        "left twice",
        "left twice first empty",
        "left escaped",
        "left with NUL",
        "name with NUL",
        "line without equals",
        "carriage returns",
        "full block",
        "filled with zeros",
        "env1 of 1025 bytes",
    ];
    for state in &mut all {
        state.odd = ODD.contains(&state.name.as_str());
    }
    all
}
