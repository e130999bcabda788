//! The 512-byte GRUB environment block of os-state.
//!
//! Format (GRUB manual, "The GRUB environment block"): first line `# GRUB Environment Block`, then `name=value` lines,
//! filled with `#`. The agent always writes all keys in the order `cur try left gen crc`. `crc` is CRC-32C over
//! `cur LF try LF gen LF`, not over `left`, which GRUB alone changes.

use crate::layout::Slot;

/// Size of a block in bytes: one sector, so that GRUB's and our writes are one sector each.
pub const SIZE: usize = 512;
/// First line of every block.
pub const SIGNATURE: &[u8] = b"# GRUB Environment Block\n";
/// Tries of one trial, always.
pub const TRIES: u8 = 3;

/// Content of one environment copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Env {
    /// Committed slot, never an unproven one.
    pub cur: Slot,
    /// Slot on trial.
    pub try_slot: Option<Slot>,
    /// Boots left of the trial, 3 to 0; `None` when there is none or the value is not one of those.
    pub left: Option<u8>,
    /// Generation, +1 per agent write.
    pub gen_: u32,
}

/// Why a block is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Not 512 bytes.
    #[error("environment block: expected 512 bytes, found {0}")]
    Size(usize),
    /// The first line is missing.
    #[error("environment block: the first line is not \"# GRUB Environment Block\"")]
    Signature,
    /// A key is missing.
    #[error("environment block: key {0:?} is missing")]
    Missing(&'static str),
    /// A key has an impossible value.
    #[error("environment block: {key}={value:?} is not valid")]
    Value {
        /// Which key.
        key: &'static str,
        /// What it holds.
        value: String,
    },
    /// The checksum differs.
    #[error("environment block: crc is {found}, content says {wanted}")]
    Crc {
        /// What the block holds.
        found: String,
        /// What its content gives.
        wanted: String,
    },
}

impl Env {
    /// A block of a new disk: `cur`, no trial, generation 1.
    pub const fn committed(cur: Slot, gen_: u32) -> Env {
        Env {
            cur,
            try_slot: None,
            left: None,
            gen_,
        }
    }

    /// Whether a trial of `slot` is under way or about to start.
    pub fn trial(&self) -> Option<Slot> {
        self.try_slot.filter(|t| *t != self.cur)
    }

    /// The block that disarms this one.
    pub const fn disarmed(&self) -> Env {
        Env {
            cur: self.cur,
            try_slot: None,
            left: None,
            gen_: self.gen_.wrapping_add(1),
        }
    }

    /// The block that puts `slot` on trial.
    pub const fn armed(&self, slot: Slot) -> Env {
        Env {
            cur: self.cur,
            try_slot: Some(slot),
            left: Some(TRIES),
            gen_: self.gen_.wrapping_add(1),
        }
    }

    /// The block that makes `slot` the default.
    pub const fn committed_to(&self, slot: Slot) -> Env {
        Env {
            cur: slot,
            try_slot: None,
            left: None,
            gen_: self.gen_.wrapping_add(1),
        }
    }

    fn crc(&self) -> u32 {
        let t = self.try_slot.map_or("", Slot::letter);
        crc32c::crc32c(format!("{}\n{}\n{}\n", self.cur, t, self.gen_).as_bytes())
    }

    /// The 512 bytes.
    pub fn encode(&self) -> [u8; SIZE] {
        let t = self.try_slot.map_or("", Slot::letter);
        let left = self.left.map(|l| l.to_string()).unwrap_or_default();
        let text = format!(
            "cur={}\ntry={t}\nleft={left}\ngen={}\ncrc={:08x}\n",
            self.cur,
            self.gen_,
            self.crc()
        );
        let mut out = [b'#'; SIZE];
        let body = [SIGNATURE, text.as_bytes()].concat();
        // At most 25 + 6 + 6 + 7 + 15 + 13 bytes: always fits.
        for (o, b) in out.iter_mut().zip(body) {
            *o = b;
        }
        out
    }

    /// Reads a block. Unknown keys and comment lines are accepted; the last of a repeated key counts, as in GRUB.
    ///
    /// # Errors
    /// [`Invalid`] when the agent must not rely on this copy. GRUB is less strict, see [`crate::boot_choice`].
    pub fn decode(block: &[u8]) -> Result<Env, Invalid> {
        if block.len() != SIZE {
            return Err(Invalid::Size(block.len()));
        }
        let get = |key: &'static str| value(block, key).ok_or(Invalid::Missing(key));
        if !block.starts_with(SIGNATURE) {
            return Err(Invalid::Signature);
        }
        let slot = |key: &'static str, v: &str| match v {
            "A" => Ok(Slot::A),
            "B" => Ok(Slot::B),
            _ => Err(Invalid::Value {
                key,
                value: v.to_owned(),
            }),
        };
        let cur = slot("cur", &get("cur")?)?;
        let try_text = get("try")?;
        let try_slot = if try_text.is_empty() {
            None
        } else {
            Some(slot("try", &try_text)?)
        };
        let left = match get("left")?.as_str() {
            "0" => Some(0),
            "1" => Some(1),
            "2" => Some(2),
            "3" => Some(3),
            _ => None,
        };
        let gen_text = get("gen")?;
        let gen_ = gen_text.parse().map_err(|_| Invalid::Value {
            key: "gen",
            value: gen_text,
        })?;
        let env = Env {
            cur,
            try_slot,
            left,
            gen_,
        };
        let found = get("crc")?;
        let wanted = format!("{:08x}", env.crc());
        if found != wanted {
            return Err(Invalid::Crc { found, wanted });
        }
        Ok(env)
    }
}

/// The variables of a block in GRUB's reading: what `load_env` would set, in order, the last one of a name counts.
///
/// GRUB reads more than lines of `name=value`: a backslash takes the next byte as it is, line breaks included; a line
/// without `=` becomes part of the next name; a name or value ends at a NUL; a last line without LF is ignored.
pub fn variables(block: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut out = Vec::new();
    // GRUB wants one byte more than the signature.
    let Some(body) = block
        .strip_prefix(SIGNATURE)
        .filter(|_| block.len() > SIGNATURE.len())
    else {
        return out;
    };
    let c_string = |b: &[u8]| b.split(|c| *c == 0).next().unwrap_or_default().to_vec();
    let mut rest = body;
    loop {
        if rest.first() == Some(&b'#') {
            let Some(end) = line_end(rest) else { break };
            rest = rest.get(end + 1..).unwrap_or_default();
            continue;
        }
        let Some(eq) = rest.iter().position(|b| *b == b'=') else {
            break;
        };
        let (name, value) = (
            rest.get(..eq).unwrap_or_default(),
            rest.get(eq + 1..).unwrap_or_default(),
        );
        let Some(end) = line_end(value) else { break };
        let mut plain = Vec::with_capacity(end);
        let mut it = value.iter().take(end);
        while let Some(b) = it.next() {
            plain.push(if *b == b'\\' { *it.next().unwrap_or(b) } else { *b });
        }
        out.push((c_string(name), c_string(&plain)));
        rest = value.get(end + 1..).unwrap_or_default();
    }
    out
}

/// Position of the LF that ends a line, escapes skipped.
fn line_end(b: &[u8]) -> Option<usize> {
    let mut i = 0;
    loop {
        match b.get(i)? {
            b'\n' => return Some(i),
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
}

/// The value of `key` in a block, as GRUB reads it, see [`variables`].
pub fn value(block: &[u8], key: &str) -> Option<String> {
    variables(block)
        .into_iter()
        .rfind(|(name, _)| name == key.as_bytes())
        .map(|(_, v)| String::from_utf8_lossy(&v).into_owned())
}

/// A block with one variable, of as many KiB as it needs; for files that GRUB only reads.
pub fn single(key: &str, value: &str) -> Vec<u8> {
    let mut out = SIGNATURE.to_vec();
    out.extend(key.bytes());
    out.push(b'=');
    for b in value.bytes() {
        if matches!(b, b'\\' | b'\n') {
            out.push(b'\\');
        }
        out.push(b);
    }
    out.push(b'\n');
    let size = out.len().next_multiple_of(1024);
    out.resize(size, b'#');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_is_one_sector_of_text() {
        let b = Env::committed(Slot::A, 1).armed(Slot::B).encode();
        assert_eq!(b.len(), SIZE);
        let text = String::from_utf8(b.to_vec()).unwrap();
        insta::assert_snapshot!(text.trim_end_matches('#'));
        assert!(text.ends_with("####"));
    }

    #[test]
    fn crc_does_not_cover_left_because_grub_changes_it() {
        let e = Env::committed(Slot::A, 7).armed(Slot::B);
        let text = String::from_utf8(e.encode().to_vec())
            .unwrap()
            .replace("left=3", "left=2");
        assert_eq!(Env::decode(text.as_bytes()).unwrap().left, Some(2));
    }

    #[test]
    fn damage_is_named() {
        let good = Env::committed(Slot::B, 9).encode();
        assert_eq!(Env::decode(&good[..511]), Err(Invalid::Size(511)));
        assert_eq!(Env::decode(&[0; SIZE]), Err(Invalid::Signature));
        let swap = |from: &str, to: &str| {
            let t = String::from_utf8(good.to_vec()).unwrap().replacen(from, to, 1);
            let mut b = t.into_bytes();
            b.resize(SIZE, b'#');
            Env::decode(&b)
        };
        assert_eq!(
            swap("cur=B", "cur=C"),
            Err(Invalid::Value {
                key: "cur",
                value: "C".into()
            })
        );
        assert!(matches!(swap("cur=B", "cur=A"), Err(Invalid::Crc { .. })));
        assert_eq!(swap("try=\n", ""), Err(Invalid::Missing("try")));
        assert!(matches!(
            swap("gen=9", "gen=x"),
            Err(Invalid::Value { key: "gen", .. })
        ));
        // A comment line that somebody's tool added is no damage.
        assert!(swap("cur=B", "# saved by hand\ncur=B").is_ok());
    }

    #[test]
    fn grubs_reading_of_odd_blocks() {
        let v = |body: &str, key: &str| value(&[SIGNATURE, body.as_bytes()].concat(), key);
        assert_eq!(v("cur=A\ncur=B\n##", "cur").as_deref(), Some("B"));
        assert_eq!(v("junk\ncur=A\n##", "cur"), None, "the name is \"junk LF cur\"");
        assert_eq!(
            v("\ncur=A\n##", "cur"),
            None,
            "an empty line belongs to the next name"
        );
        assert_eq!(v("# cur=B\ncur=A\n##", "cur").as_deref(), Some("A"));
        assert_eq!(v("x=a\\\ncur=B\ncur=A\n##", "cur").as_deref(), Some("A"));
        assert_eq!(
            v("x=a\\\ncur=B\n##", "cur"),
            None,
            "an escaped line break does not end the value"
        );
        assert_eq!(v("cur=\\A\n##", "cur").as_deref(), Some("A"));
        assert_eq!(v("cur=A\0z\n##", "cur").as_deref(), Some("A"));
        assert_eq!(v("cur=A", "cur"), None, "the last line needs its LF");
        assert_eq!(v("cur=A\r\n", "cur").as_deref(), Some("A\r"));
    }

    #[test]
    fn one_variable_of_any_length_comes_back() {
        for text in ["", "a b=c", "back\\slash", "two\nlines", &"x".repeat(3000)] {
            let b = single("args", text);
            assert_eq!(b.len() % 1024, 0);
            assert_eq!(value(&b, "args").as_deref(), Some(text));
        }
    }

    proptest! {
        #[test]
        fn every_block_round_trips(cur in 0..2u8, t in 0..3u8, left in proptest::option::of(0..=3u8), g in any::<u32>()) {
            let s = |n| if n == 0 { Slot::A } else { Slot::B };
            let e = Env { cur: s(cur), try_slot: (t < 2).then(|| s(t)), left, gen_: g };
            prop_assert_eq!(Env::decode(&e.encode()).unwrap(), e);
        }

        #[test]
        fn no_single_byte_change_of_a_key_but_left_goes_unnoticed(pos in 25..90usize, byte in any::<u8>()) {
            let e = Env::committed(Slot::A, 4_000_000_000).armed(Slot::B);
            let mut b = e.encode();
            let before = b[pos];
            b[pos] = byte;
            if let Ok(got) = Env::decode(&b) {
                prop_assert!(byte == before || (got.cur, got.try_slot, got.gen_) == (e.cur, e.try_slot, e.gen_));
            }
        }

        #[test]
        fn garbage_never_panics(b in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Env::decode(&b);
            let _ = value(&b, "cur");
        }
    }
}
