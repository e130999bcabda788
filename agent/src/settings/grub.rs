//! PURE: grub.cmdline.current and grub.cmdline.next: the node's own kernel arguments of one slot.
//!
//! They lie in a file of their own for each slot, which grub.cfg loads as data behind the image's arguments, the same for
//! both firmwares. An update of a slot does not touch it.

use super::{Item, Op, Verdict, plain};
use os_proto::kernel_args::{self, MAX_USER_ARGS};

/// Applies entries to a slot's arguments, in order. `cmdline` = what the running kernel was started with, for messages.
pub(super) fn edit(old: Option<&[u8]>, items: &[&Item], cmdline: &str) -> (Vec<u8>, Vec<Verdict>) {
    let before = old.map(kernel_args::user_args).unwrap_or_default();
    let mut args = before.clone();
    let mut verdicts: Vec<Verdict> = items
        .iter()
        .map(|i| entry(&mut args, i, cmdline).unwrap_or_else(Verdict::rejected))
        .collect();
    if args == before {
        return (old.map(<[u8]>::to_vec).unwrap_or_default(), verdicts);
    }
    match kernel_args::user_env(&args) {
        Ok(block) => (block, verdicts),
        Err(e) => {
            // What was there and is not ours to judge stays; the entry that made it too long is named.
            if let Some(v) = verdicts
                .iter_mut()
                .rev()
                .find(|v| v.outcome == super::Outcome::Changed)
            {
                *v = Verdict::rejected(format!("{e} (limit for a node's own: {MAX_USER_ARGS})"));
            }
            (old.map(<[u8]>::to_vec).unwrap_or_default(), verdicts)
        }
    }
}

fn key_of(arg: &str) -> &str {
    arg.split('=').next().unwrap_or(arg)
}

fn entry(args: &mut Vec<String>, item: &Item, cmdline: &str) -> Result<Verdict, String> {
    let value = plain(&item.value)?;
    if item.key.is_empty() || item.key.contains('=') {
        return Err(format!("key {:?}: expected the part before the =", item.key));
    }
    let arg = if value.is_empty() {
        item.key.clone()
    } else {
        format!("{}={value}", item.key)
    };
    kernel_args::check(&arg).map_err(|e| e.to_string())?;
    let held: Vec<String> = args.iter().filter(|a| key_of(a) == item.key).cloned().collect();
    if item.op == Op::Delete {
        if held.is_empty() {
            let image = cmdline.split_ascii_whitespace().any(|a| key_of(a) == item.key);
            return Ok(Verdict::unchanged(if image {
                "an argument of the image itself, which only another image leaves out; an argument added here stands behind it"
            } else {
                "the slot has no such argument of its own"
            }));
        }
        if let Some(other) = held.iter().find(|h| **h != arg) {
            return Err(format!(
                "the slot has {other:?}, the entry names {arg:?}; an argument is deleted only with the value it has"
            ));
        }
        args.retain(|a| *a != arg);
        return Ok(Verdict::changed("deleted"));
    }
    if held.len() == 1 && held.first() == Some(&arg) {
        return Ok(Verdict::unchanged(""));
    }
    if value.is_empty()
        && let Some(h) = held.iter().find(|h| h.contains('='))
    {
        return Err(format!(
            "the slot has {h:?}; an argument may gain a value but not lose it: delete it first"
        ));
    }
    match args.iter().position(|a| key_of(a) == item.key) {
        // All values of a repeated argument give way to the one that was asked for.
        Some(first) => {
            let mut n = 0;
            args.retain(|a| {
                n += 1;
                n - 1 <= first || key_of(a) != item.key
            });
            if let Some(a) = args.get_mut(first) {
                *a = arg;
            }
            Ok(Verdict::changed(format!("was {}", held.join(" "))))
        }
        None => {
            args.push(arg);
            Ok(Verdict::changed("added"))
        }
    }
}
