//! PURE: the files of a root file system, without their data.

use std::collections::{BTreeMap, HashMap};

/// What every file has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits with set-user-id, set-group-id and sticky.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Unix seconds.
    pub mtime: i64,
    /// Number of a set in [`Tree::xattr_sets`].
    pub xattrs: Option<u32>,
}

/// What a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Data in consecutive blocks.
    File {
        /// First block.
        first: u32,
        /// Bytes.
        size: u64,
        /// Of the bytes.
        sha256: [u8; 32],
    },
    /// Names and their nodes.
    Dir {
        /// Sorted by name.
        children: BTreeMap<Vec<u8>, usize>,
        /// The directory that it is in.
        parent: usize,
    },
    /// Where it points.
    Symlink(Vec<u8>),
    /// Major, minor.
    Char(u32, u32),
    /// Major, minor.
    Block(u32, u32),
    /// A named pipe.
    Fifo,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Owner and the like.
    pub meta: Meta,
    /// What it is.
    pub content: Content,
    /// Names that lead to it.
    pub links: u32,
}

/// A sorted set of extended attributes: kind of name (see `ext4`), rest of the name, value.
pub type XattrSet = Vec<(u8, Vec<u8>, Vec<u8>)>;

/// All files; node 0 is the root, node 1 is `lost+found`.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    sets: Vec<XattrSet>,
    known: HashMap<XattrSet, u32>,
}

/// Prefixes of attribute names and the numbers that ext4 keeps for them.
const PREFIXES: [(&[u8], u8); 4] = [
    (b"user.", 1),
    (b"trusted.", 4),
    (b"security.", 6),
    (b"system.", 7),
];

impl Default for Tree {
    fn default() -> Self {
        Tree::new()
    }
}

impl Tree {
    /// The root and `lost+found`, which a file system check expects.
    pub fn new() -> Tree {
        let dir = |mode, children, links| Node {
            meta: Meta {
                mode,
                ..Meta::default()
            },
            content: Content::Dir { children, parent: 0 },
            links,
        };
        let found = BTreeMap::from([(b"lost+found".to_vec(), 1)]);
        Tree {
            nodes: vec![dir(0o755, found, 3), dir(0o700, BTreeMap::new(), 2)],
            sets: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All different sets of attributes.
    pub fn xattr_sets(&self) -> &[XattrSet] {
        &self.sets
    }

    /// Keeps a set of attributes once; `None` = an empty one.
    ///
    /// # Errors
    /// An attribute that cannot be kept.
    pub fn intern(&mut self, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<Option<u32>, String> {
        let mut set = XattrSet::new();
        for (name, value) in xattrs {
            if name.starts_with(b"system.posix_acl_") {
                return Err("access control lists in archives are not supported".into());
            }
            let (prefix, index) = PREFIXES
                .iter()
                .find(|(p, _)| name.starts_with(p))
                .ok_or_else(|| format!("attribute {:?}", String::from_utf8_lossy(name)))?;
            let rest = name.get(prefix.len()..).unwrap_or_default();
            if rest.is_empty() || rest.len() > 255 || value.len() > 3000 {
                return Err(format!(
                    "attribute {:?} is too large",
                    String::from_utf8_lossy(name)
                ));
            }
            set.retain(|(i, n, _)| !(i == index && n == rest));
            set.push((*index, rest.to_vec(), value.clone()));
        }
        if set.is_empty() {
            return Ok(None);
        }
        // The order that ext4 searches in.
        set.sort_by(|a, b| (a.0, a.1.len(), &a.1).cmp(&(b.0, b.1.len(), &b.1)));
        let total: usize = set.iter().map(|(_, n, v)| n.len() + v.len() + 24).sum();
        if total > 4000 {
            return Err("more than 4 KiB of attributes".into());
        }
        if let Some(n) = self.known.get(&set) {
            return Ok(Some(*n));
        }
        let n = u32::try_from(self.sets.len()).map_err(|e| e.to_string())?;
        self.sets.push(set.clone());
        self.known.insert(set, n);
        Ok(Some(n))
    }

    fn children(&self, node: usize) -> Option<&BTreeMap<Vec<u8>, usize>> {
        match self.nodes.get(node).map(|n| &n.content) {
            Some(Content::Dir { children, .. }) => Some(children),
            _ => None,
        }
    }

    fn find(&self, path: &[Vec<u8>]) -> Option<usize> {
        path.iter()
            .try_fold(0, |at, name| self.children(at)?.get(name).copied())
    }

    /// Whether a regular file that is not empty lies at an absolute path.
    pub fn has_file(&self, path: &str) -> bool {
        let path: Vec<Vec<u8>> = path
            .split('/')
            .filter(|c| !c.is_empty())
            .map(|c| c.as_bytes().to_vec())
            .collect();
        // A link stands for its target: what it leads to is found out when the file system is inspected.
        self.find(&path)
            .and_then(|n| self.nodes.get(n))
            .is_some_and(|n| match &n.content {
                Content::File { size, .. } => *size > 0,
                Content::Symlink(_) => true,
                _ => false,
            })
    }

    /// The directory of a path; missing ones are made as `mkdir -p` does.
    fn parent<'p>(&mut self, path: &'p [Vec<u8>], mtime: i64) -> Result<(usize, &'p Vec<u8>), String> {
        let (name, dirs) = path
            .split_last()
            .ok_or("a member that is the root but no directory")?;
        let mut at = 0;
        for (depth, dir) in dirs.iter().enumerate() {
            let children = self.children(at).ok_or_else(|| {
                format!(
                    "{}: lies below something that is no directory",
                    super::tar::shown(path)
                )
            })?;
            at = match children.get(dir) {
                Some(n) => *n,
                None => {
                    let meta = Meta {
                        mode: 0o755,
                        mtime,
                        ..Meta::default()
                    };
                    self.dir(path.get(..=depth).unwrap_or_default(), meta)?
                }
            };
        }
        Ok((at, name))
    }

    fn insert(&mut self, path: &[Vec<u8>], mtime: i64, node: usize) -> Result<usize, String> {
        let (dir, name) = self.parent(path, mtime)?;
        let name = name.clone();
        match self.nodes.get_mut(dir).map(|n| &mut n.content) {
            Some(Content::Dir { children, .. }) => {
                if children.contains_key(&name) {
                    return Err(format!("{}: twice in the archive", super::tar::shown(path)));
                }
                children.insert(name, node);
                Ok(dir)
            }
            _ => Err(format!(
                "{}: lies below something that is no directory",
                super::tar::shown(path)
            )),
        }
    }

    /// Adds a directory, or gives one that exists these properties.
    ///
    /// # Errors
    /// What is in the way.
    pub fn dir(&mut self, path: &[Vec<u8>], meta: Meta) -> Result<usize, String> {
        if let Some(n) = self.find(path) {
            let shown = super::tar::shown(path);
            return match self.nodes.get_mut(n) {
                Some(node) if matches!(node.content, Content::Dir { .. }) => {
                    node.meta = meta;
                    Ok(n)
                }
                _ => Err(format!("{shown}: twice in the archive")),
            };
        }
        // Missing parents first: they take numbers.
        self.parent(path, meta.mtime)?;
        let n = self.nodes.len();
        let parent = self.insert(path, meta.mtime, n)?;
        self.nodes.push(Node {
            meta,
            content: Content::Dir {
                children: BTreeMap::new(),
                parent,
            },
            links: 2,
        });
        if let Some(p) = self.nodes.get_mut(parent) {
            p.links += 1;
        }
        Ok(n)
    }

    /// Adds anything but a directory.
    ///
    /// # Errors
    /// What is in the way.
    pub fn add(&mut self, path: &[Vec<u8>], meta: Meta, content: Content) -> Result<(), String> {
        self.parent(path, meta.mtime)?;
        self.insert(path, meta.mtime, self.nodes.len())?;
        self.nodes.push(Node {
            meta,
            content,
            links: 1,
        });
        Ok(())
    }

    /// Adds another name of a file that came before.
    ///
    /// # Errors
    /// Why there is no such file.
    pub fn link(&mut self, path: &[Vec<u8>], to: &[Vec<u8>]) -> Result<(), String> {
        let target = self
            .find(to)
            .filter(|n| self.children(*n).is_none())
            .ok_or_else(|| {
                format!(
                    "{}: another name of {}, which did not come before",
                    super::tar::shown(path),
                    super::tar::shown(to)
                )
            })?;
        self.insert(path, 0, target)?;
        match self.nodes.get_mut(target) {
            Some(n) if n.links < 65_000 => {
                n.links += 1;
                Ok(())
            }
            _ => Err(format!("{}: too many names of one file", super::tar::shown(path))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(path: &str) -> Vec<Vec<u8>> {
        path.split('/').map(|c| c.as_bytes().to_vec()).collect()
    }

    #[test]
    fn parents_are_made_links_counted_and_nothing_is_overwritten() {
        let mut t = Tree::new();
        t.add(&p("a/b/c"), Meta::default(), Content::Fifo).unwrap();
        t.dir(
            &p("a"),
            Meta {
                mode: 0o700,
                ..Meta::default()
            },
        )
        .unwrap();
        let at = |t: &Tree, path| t.find(&p(path)).and_then(|n| t.nodes().get(n)).unwrap().clone();
        assert_eq!(at(&t, "a").meta.mode, 0o700);
        assert_eq!((at(&t, "a").links, at(&t, "a/b").links), (3, 2));
        assert_eq!(at(&t, "a/b/c").content, Content::Fifo);
        t.link(&p("a/x"), &p("a/b/c")).unwrap();
        assert_eq!(at(&t, "a/x").links, 2);
        assert!(
            t.add(&p("a/b/c"), Meta::default(), Content::Fifo)
                .unwrap_err()
                .contains("twice")
        );
        assert!(t.link(&p("y"), &p("a")).unwrap_err().contains("did not come"));
        t.add(&p("l"), Meta::default(), Content::Symlink(b"/etc".to_vec()))
            .unwrap();
        let e = t.add(&p("l/passwd"), Meta::default(), Content::Fifo).unwrap_err();
        assert!(e.contains("no directory"), "{e}");
        assert!(t.dir(&p("l"), Meta::default()).is_err());
    }

    #[test]
    fn attributes_are_sorted_kept_once_and_bounded() {
        let mut t = Tree::new();
        let a = |n: &str, v: &[u8]| (n.as_bytes().to_vec(), v.to_vec());
        let one = t
            .intern(&[a("security.selinux", b"x"), a("user.a", b"1")])
            .unwrap();
        let two = t
            .intern(&[a("user.a", b"1"), a("security.selinux", b"x")])
            .unwrap();
        assert_eq!((one, two), (Some(0), Some(0)));
        assert_eq!(t.intern(&[]).unwrap(), None);
        for bad in [
            a("system.posix_acl_access", b""),
            a("os2.x", b""),
            a("user.b", &[0; 4000]),
        ] {
            assert!(t.intern(&[bad]).is_err());
        }
    }
}
