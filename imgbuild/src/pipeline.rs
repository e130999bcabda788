//! The stages of a build in order. Runs in the worker; everything lands in the working directory, the supervisor gives the
//! finished files their names.

mod root;
mod space;

use crate::boot;
use crate::disk::{self, BiosBoot, Content};
use crate::error::{BuildError, Kind, Result};
use crate::export;
use crate::files;
use crate::fs::ext4::{self, Ext4, Purpose};
use crate::fs::fat::{self, FatFile};
use crate::fs::usage::{self, Usage};
use crate::identity::{self, Identity};
use crate::outputs::Paths;
use crate::persist;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::recipe::{Recipe, Rootfs, Trust};
use crate::report::{self, Build, OutputFile};
use os_proto::digest::Sha256Digest;
use os_proto::env_block::Env;
use os_proto::layout::{Role, Slot, state_geometry};
use root::Root;

/// Slots fuller than this get a warning: an update must fit as well.
const FULL_PERCENT: u64 = 85;

/// What a build needs to know besides recipe and plan.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where `update.img` will be served from, for os.yaml; a trailing slash is optional.
    pub base_url: Option<String>,
}

/// Programs that a build of this recipe starts on the host.
pub fn tools(recipe: &Recipe) -> Vec<&'static str> {
    let mut list = vec!["mke2fs", "debugfs", "e2fsck", "qemu-img"];
    match &recipe.rootfs {
        Rootfs::Packages { .. } => list.extend(["dnf", "rpm"]),
        Rootfs::Tree(_) if crate::rootfs::tree::needs_copy(recipe) => list.push("cp"),
        Rootfs::Tree(_) => {}
    }
    list
}

/// Whether a build runs programs inside the root or changes it, and so wants namespaces where it can have them.
pub fn changes_root(recipe: &Recipe) -> bool {
    matches!(recipe.rootfs, Rootfs::Packages { .. }) || crate::rootfs::tree::needs_copy(recipe)
}

/// Builds everything into `paths.ready`.
///
/// # Errors
/// The first stage that failed; nothing outside the working directory was touched.
pub fn build(
    recipe: &Recipe,
    plan: &Plan,
    paths: &Paths,
    options: &Options,
    progress: &dyn Progress,
) -> Result<()> {
    let run = Run {
        recipe,
        plan,
        paths,
        options,
        progress,
    };
    run.all().map_err(|e| space::explain(e, &paths.work))
}

struct Run<'a> {
    recipe: &'a Recipe,
    plan: &'a Plan,
    paths: &'a Paths,
    options: &'a Options,
    progress: &'a dyn Progress,
}

/// A finished root image.
struct Image {
    identity: Identity,
    size: u64,
    sha256: Sha256Digest,
    fill_percent: u64,
}

impl Run<'_> {
    fn all(&self) -> Result<()> {
        let root = root::make(self.recipe, &self.paths.work, self.progress)?;
        let identity = self.identity(&root)?;
        let usage = usage::measure(&root.dir)?;
        let fill_percent = self.check_size(&root, &usage)?;
        self.root_image(&root, &usage)?;

        self.progress.stage("hash the update image");
        let root_img = self.paths.work.join("root.img");
        let image = Image {
            identity,
            size: self.plan.partition(Role::RootA)?.size,
            sha256: files::sha256(&root_img)?,
            fill_percent,
        };
        let contents = self.partitions(&root, &image)?;

        self.progress.stage("write system.img");
        let system = self.paths.ready.join("system.img");
        let bios = root.grub.as_ref().map(|g| BiosBoot {
            boot_img: &g.boot_img,
            core_img: &g.core_img,
        });
        disk::write(&system, self.plan, &contents, bios, self.progress)?;
        export::update::take(&root_img, &self.paths.ready.join("update.img"))?;
        self.reports(&root, &image)
    }

    fn identity(&self, root: &Root) -> Result<Identity> {
        let wanted = Identity {
            version: self.recipe.version.clone(),
            pretty_name: self.recipe.pretty_name(),
        };
        match identity::of_tree(&root.dir)? {
            Some(found) if found == wanted => Ok(found),
            Some(found) if root.as_given => {
                let m = format!(
                    "the tree calls itself {:?} (VERSION_ID {}), the recipe {:?}; os.yaml and the slot record say what the tree says",
                    found.pretty_name, found.version, wanted.pretty_name
                );
                self.progress.warning("IMG010", &m);
                Ok(found)
            }
            None if root.as_given => Ok(wanted),
            found => Err(BuildError::new(
                Kind::Build,
                "IMG010",
                format!("os-release of the finished root: expected {wanted:?}, found {found:?}"),
            )),
        }
    }

    fn check_size(&self, root: &Root, usage: &Usage) -> Result<u64> {
        let slot = self.plan.partition(Role::RootA)?.size;
        let fill = usage.check(slot)?;
        if fill >= FULL_PERCENT {
            let m = format!(
                "the image fills {fill} % of a slot of {} MiB; later versions may not fit, and a slot never grows",
                slot >> 20
            );
            self.progress.warning("SIZE002", &m);
        }
        let amounts = space::Amounts {
            root: usage.need(usage.inodes_with_spare()),
            boot: root
                .grub
                .as_ref()
                .map_or(0, |g| (g.efi.len() + g.core_img.len()) as u64),
            persist: self.plan.partition(Role::Persist)?.size,
        };
        space::check(amounts, &self.paths.work)?;
        Ok(fill)
    }

    fn root_image(&self, root: &Root, usage: &Usage) -> Result<()> {
        self.progress
            .stage(&format!("make the root image ({} files)", usage.inodes));
        let part = self.plan.partition(Role::RootA)?;
        let fs = Ext4 {
            image: &self.paths.work.join("root.img"),
            tree: &root.dir,
            size: part.size,
            uuid: self.plan.ids.root,
            hash_seed: self.plan.ids.hash_seed,
            label: "ROOT",
            epoch: self.plan.source_date_epoch,
            purpose: Purpose::ReadOnly {
                inodes: usage.inodes_with_spare(),
            },
        };
        ext4::make(&fs, &self.paths.work)
    }

    /// Everything but slot A's content, in the order in which it lies on the disk.
    fn partitions(&self, root: &Root, image: &Image) -> Result<Vec<(Role, Content)>> {
        self.progress.stage("make BOOT, os-state and PERSIST");
        let work = &self.paths.work;
        let ids = &self.plan.ids;

        let boot_img = work.join("boot.img");
        fat::boot_image(
            &boot_img,
            self.plan.partition(Role::Boot)?.size,
            ids.boot,
            &self.boot_files(root),
        )?;

        let geometry = state_geometry(self.plan.sector_size).ok_or_else(|| {
            BuildError::new(
                Kind::Bug,
                "BUG001",
                format!("no os-state for sectors of {}", self.plan.sector_size),
            )
        })?;
        let state = fat::state_image(geometry, ids.os_state, &Env::committed(Slot::A, 1))?;

        let Identity { version, pretty_name } = &image.identity;
        let record = persist::record(version, pretty_name, image.size, image.sha256, image.sha256);
        let tree = work.join("persist");
        persist::tree(&tree, &record)?;
        let persist_img = work.join("persist.img");
        let fs = Ext4 {
            image: &persist_img,
            tree: &tree,
            size: self.plan.partition(Role::Persist)?.size,
            uuid: ids.persist,
            hash_seed: ids.hash_seed,
            label: "PERSIST",
            epoch: self.plan.source_date_epoch,
            purpose: Purpose::Data,
        };
        ext4::make(&fs, work)?;
        Ok(vec![
            (Role::Boot, Content::File(boot_img)),
            (Role::OsState, Content::Bytes(state)),
            (Role::RootA, Content::File(work.join("root.img"))),
            (Role::Persist, Content::File(persist_img)),
        ])
    }

    fn boot_files(&self, root: &Root) -> Vec<FatFile> {
        let Some(grub) = &root.grub else {
            return Vec::new();
        };
        let mut out = vec![
            (boot::esp::GRUB_CFG.to_owned(), boot::GRUB_CFG.as_bytes().to_vec()),
            (boot::esp::MENU.to_owned(), boot::menu_env(self.recipe.boot.menu)),
        ];
        for platform in boot::Platform::of(self.recipe.arch) {
            if let Some(path) = platform.removable_path() {
                out.push((path.to_owned(), grub.efi.clone()));
            }
        }
        out
    }

    fn reports(&self, root: &Root, image: &Image) -> Result<()> {
        let ready = &self.paths.ready;
        let (raw, qcow2) = (ready.join("system.img"), ready.join("system.qcow2"));
        self.progress.stage("write system.qcow2");
        // Hashing the raw image and converting it both read it once, and there are two processors in most machines.
        let raw_hash = std::thread::scope(|s| {
            let hash = s.spawn(|| files::sha256(&raw));
            export::qcow2::write(&raw, &qcow2)?;
            hash.join()
                .map_err(|_| BuildError::new(Kind::Bug, "BUG001", "hashing system.img panicked"))?
        })?;
        self.progress.stage("write the reports");
        let url = self.url();
        let yaml = report::os_resource(
            &self.recipe.os_id(),
            &image.identity.pretty_name,
            &image.sha256,
            url.as_deref(),
        );
        files::write(&ready.join("os.yaml"), yaml.as_bytes())?;
        files::write(
            &ready.join("packages.txt"),
            report::packages(&root.packages).as_bytes(),
        )?;

        let mut list = vec![
            ("system.img".to_owned(), raw_hash),
            ("update.img".to_owned(), image.sha256),
        ];
        for name in ["system.qcow2", "os.yaml", "packages.txt"] {
            list.push((name.to_owned(), files::sha256(&ready.join(name))?));
        }
        let build = self.summary(root, image, &list)?;
        let mut json = serde_json::to_vec_pretty(&build)
            .map_err(|e| BuildError::new(Kind::Bug, "BUG001", format!("build.json: {e}")))?;
        json.push(b'\n');
        files::write(&ready.join("build.json"), &json)?;
        list.push(("build.json".to_owned(), files::sha256(&ready.join("build.json"))?));
        files::write(&ready.join("SHA256SUMS"), report::sums(&list).as_bytes())
    }

    fn url(&self) -> Option<String> {
        match &self.options.base_url {
            Some(base) => Some(format!("{}/update.img", base.trim_end_matches('/'))),
            None => self.recipe.image_url.clone(),
        }
    }

    fn summary(&self, root: &Root, image: &Image, list: &[(String, Sha256Digest)]) -> Result<Build> {
        let mut files = Vec::new();
        for (name, sha256) in list {
            let path = self.paths.ready.join(name);
            let meta = fs_err::metadata(&path).map_err(|e| BuildError::io(format!("reading {path}"), &e))?;
            files.push(OutputFile {
                name: name.clone(),
                size: meta.len(),
                sha256: *sha256,
            });
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let unverified = match &self.recipe.rootfs {
            Rootfs::Packages { repos, .. } => repos
                .iter()
                .filter(|r| r.trust == Trust::AllowUnsigned)
                .map(|r| r.id.clone())
                .collect(),
            Rootfs::Tree(_) => Vec::new(),
        };
        Ok(Build {
            schema: 1,
            pretty_name: image.identity.pretty_name.clone(),
            version: image.identity.version.clone(),
            arch: self.recipe.arch.as_str().to_owned(),
            source_date_epoch: self.plan.source_date_epoch,
            builder: env!("CARGO_PKG_VERSION").to_owned(),
            image_size: image.size,
            image_sha256: image.sha256,
            slot_fill_percent: image.fill_percent,
            packages: root.packages.len(),
            unverified_repositories: unverified,
            files,
            partitions: self.plan.partitions.clone(),
        })
    }
}
