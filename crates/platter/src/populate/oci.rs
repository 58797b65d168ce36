//! OCI image layouts: directories with the layers of container images, as `skopeo copy` and `buildah push`
//! write them. Spec: OCI Image Format 1.1, `image-layout.md`, `image-index.md`, `manifest.md`,
//! `descriptor.md`.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{broken, host_error};
use crate::{Error, Escaped, Result};

/// The longest index or manifest, as registries limit them.
const JSON_BYTES_MAX: u64 = 4 << 20;
/// Indexes within indexes.
const DEPTH_MAX: u32 = 4;
/// Bytes hashed at once.
const STEP_BYTES: usize = 128 << 10;
/// Digits of a SHA-256 digest.
const DIGEST_DIGITS: usize = 64;

const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const MANIFESTS: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
/// Layers are archives; their compression is recognised by its magic.
const LAYERS: [&str; 7] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
];
const REFERENCE: &str = "org.opencontainers.image.ref.name";

/// A layer whose digest was verified.
pub(super) struct Layer {
    pub(super) name: Arc<str>,
    pub(super) file: File,
}

/// The layers of an image, lowest first: of the one tagged `reference`, or of the only one for this machine.
pub(super) fn layers(directory: &Path, reference: Option<&str>) -> Result<Vec<Layer>> {
    let layout = Layout::open(directory)?;
    let index = layout.json(&directory.join("index.json"))?;
    let descriptor = layout.choose(&index, reference)?;
    let manifest = layout.manifest(descriptor, DEPTH_MAX)?;
    let layers = manifest["layers"].as_array();
    let layers = layers.ok_or_else(|| layout.error("the manifest has no layers"))?;
    let mut found = Vec::with_capacity(layers.len());
    for descriptor in layers {
        let kind = text(descriptor, "mediaType");
        if !LAYERS.contains(&kind) {
            return Err(layout.error(format!("layers of type {} are not supported", shown(kind))));
        }
        found.push(layout.blob(descriptor)?);
    }
    Ok(found)
}

struct Layout {
    directory: PathBuf,
    name: Arc<str>,
}

impl Layout {
    fn open(directory: &Path) -> Result<Self> {
        let layout = Self {
            directory: directory.to_owned(),
            name: shown_path(directory),
        };
        if directory.is_file() {
            let text =
                "is not a directory; unpack an archive of an OCI image layout first (tar -xf)";
            return Err(layout.error(text));
        }
        let marker = layout.json(&directory.join("oci-layout"))?;
        let version = text(&marker, "imageLayoutVersion");
        if !version.starts_with("1.") {
            let text = format!("image layout version {} is not supported", shown(version));
            return Err(layout.error(text));
        }
        Ok(layout)
    }

    fn error(&self, text: impl Into<String>) -> Error {
        Error::new(&self.name, broken(text))
    }

    fn json(&self, path: &Path) -> Result<Value> {
        let host = |error| host_error(path, error);
        let file = File::open(path).map_err(host)?;
        self.parse(path, file)
    }

    fn parse(&self, path: &Path, file: File) -> Result<Value> {
        let mut bytes = Vec::new();
        let read = file.take(JSON_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| host_error(path, error))?;
        if bytes.len() as u64 > JSON_BYTES_MAX {
            return Err(self.error("an index or manifest is too long"));
        }
        let value = serde_json::from_slice(&bytes);
        value.map_err(|error| Error::new(&shown_path(path), broken(error.to_string())))
    }

    /// The descriptor of an image in an index.
    fn choose<'v>(&self, index: &'v Value, reference: Option<&str>) -> Result<&'v Value> {
        let all = index["manifests"].as_array();
        let all = all.ok_or_else(|| self.error("the index has no manifests"))?;
        let images: Vec<_> = all.iter().filter(|one| is_image(one)).collect();
        let tag = |one: &Value| text(&one["annotations"], REFERENCE).to_owned();
        let tagged = |one: &&&Value| reference.is_none_or(|wanted| tag(one) == wanted);
        let named: Vec<&Value> = images.iter().filter(tagged).copied().collect();
        let here: Vec<&Value> = named
            .iter()
            .filter(|one| is_for_this_machine(one))
            .copied()
            .collect();
        match (&named[..], &here[..]) {
            ([one], _) | (_, [one]) => Ok(one),
            ([], _) => Err(self.error(format!(
                "no image is tagged {}; there are: {}",
                shown(reference.unwrap_or_default()),
                list(&images)
            ))),
            _ => Err(self.error(format!("several images; name one: {}", list(&named)))),
        }
    }

    /// The manifest that a descriptor leads to, of those of an index the one for this machine.
    fn manifest(&self, descriptor: &Value, depth: u32) -> Result<Value> {
        let kind = text(descriptor, "mediaType");
        let is_index = INDEXES.contains(&kind);
        if !is_index && !MANIFESTS.contains(&kind) {
            return Err(self.error(format!("{} is not an image", shown(kind))));
        }
        if depth == 0 {
            return Err(self.error("indexes are nested too deeply"));
        }
        let blob = self.blob(descriptor)?;
        let value = self.parse(Path::new(&*blob.name), blob.file)?;
        if is_index {
            let descriptor = self.choose(&value, None)?;
            return self.manifest(descriptor, depth - 1);
        }
        Ok(value)
    }

    /// A blob of the size and digest that its descriptor has.
    fn blob(&self, descriptor: &Value) -> Result<Layer> {
        let digest = text(descriptor, "digest");
        let hex = digest.strip_prefix("sha256:").unwrap_or_default();
        let is_digest = hex.len() == DIGEST_DIGITS
            && hex
                .bytes()
                .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if !is_digest {
            return Err(self.error(format!("digest {} is not supported", shown(digest))));
        }
        let path = self.directory.join("blobs/sha256").join(hex);
        let host = |error| host_error(&path, error);
        let mut file = File::open(&path).map_err(host)?;
        let name = shown_path(&path);
        let len_bytes = file.metadata().map_err(host)?.len();
        if descriptor["size"].as_u64() != Some(len_bytes) {
            let text = "the size differs from that in its descriptor";
            return Err(Error::new(&name, broken(text)));
        }
        if sha256(&mut file).map_err(host)? != hex {
            let text = "the digest does not match: the blob is corrupt";
            return Err(Error::new(&name, broken(text)));
        }
        Ok(Layer { name, file })
    }
}

/// The digest of a file, in hexadecimal, and rewinds it.
fn sha256(file: &mut File) -> io::Result<String> {
    use std::fmt::Write;

    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; STEP_BYTES]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    file.rewind()?;
    let mut hex = String::with_capacity(DIGEST_DIGITS);
    for byte in hasher.finalize() {
        let _ = write!(hex, "{byte:02x}");
    }
    Ok(hex)
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn shown_path(path: &Path) -> Arc<str> {
    Escaped(path.as_os_str().as_bytes()).to_string().into()
}

fn shown(text: &str) -> String {
    format!("'{}'", Escaped(text.as_bytes()))
}

/// Attestations, which build tools add, are no images.
fn is_image(descriptor: &Value) -> bool {
    text(&descriptor["platform"], "os") != "unknown"
}

fn is_for_this_machine(descriptor: &Value) -> bool {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    };
    let platform = &descriptor["platform"];
    text(platform, "os") == "linux" && text(platform, "architecture") == architecture
}

/// The images of an index, by tag or platform.
fn list(images: &[&Value]) -> String {
    let named = images.iter().map(|one| {
        let tag = text(&one["annotations"], REFERENCE);
        let platform = &one["platform"];
        if !tag.is_empty() {
            Escaped(tag.as_bytes()).to_string()
        } else if platform.is_object() {
            let [os, architecture] = ["os", "architecture"].map(|key| text(platform, key));
            Escaped(format!("{os}/{architecture}").as_bytes()).to_string()
        } else {
            "one without a tag".to_owned()
        }
    });
    named.collect::<Vec<_>>().join(", ")
}
