//! A team of threads that runs one job at a time, all threads on the same job, the caller among them.
//! It must never burn a processor while idle: waiting spins shortly, then sleeps. And it must never decide how work is
//! split into numbers: a job's result may not depend on the team's size.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::crowd::Crowd;
use crate::shared::SharedSlice;

/// How long a waiting thread looks again and again before it sleeps, in ticks of the processor's clock, which runs at 2
/// to 4 GHz: some tens of microseconds. That is longer than the gaps between the products of one forward pass, and much
/// shorter than anything a person notices on an idle machine.
#[cfg(target_arch = "x86_64")]
const SPIN_TICKS: u64 = 150_000;

/// Looks between two glances at the clock.
const SPINS: usize = 32;

/// Rounds of looks where there is no such clock.
#[cfg(not(target_arch = "x86_64"))]
const SPIN_ROUNDS: usize = 60;

/// A larger team than this is a mistake in the caller's arithmetic.
const SIZE_MAX: usize = 1024;

/// A team of threads; see the module.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a job: two callers take turns.
    turn: Mutex<Crowd>,
    began: Instant,
}

/// A job with its lifetime erased. Only valid between its publication and the moment its door is shut and nobody is
/// inside.
type Job = *const (dyn Fn(usize) + Sync);

/// Low bits of the door: how many workers are inside.
const INSIDE: u64 = 0xffff;
/// Whether a worker may still come in.
const OPEN: u64 = INSIDE + 1;
/// From here on: the number of the job.
const NEXT_JOB: u64 = 2 * OPEN;

struct Shared {
    job: UnsafeCell<Option<Job>>,
    /// The number of the last job, whether it takes workers, and how many of them are at work on it. A worker that
    /// is late, because another program has its processor, finds the door shut: nobody waits for it.
    door: AtomicU64,
    /// Workers that have finished the last job.
    finished: AtomicUsize,
    stop: AtomicBool,
    /// The first panic of a worker in the current job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Workers asleep on `wake` that nobody has called yet.
    asleep: AtomicUsize,
    /// Whether the caller sleeps on `done`.
    caller_asleep: AtomicBool,
    gate: Mutex<()>,
    wake: Condvar,
    done: Condvar,
}

// SAFETY: `job` is written only by the caller that holds `turn`, while the door is shut and nobody inside, and read
// only by workers inside; the closure behind it is `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

thread_local! {
    /// Whether this thread is inside a team's job, where starting another one would deadlock.
    static IN_JOB: Cell<bool> = const { Cell::new(false) };
}

impl Team {
    /// A team of `size` threads (at least 1): the caller and `size - 1` workers. Where the system refuses threads, the
    /// team is smaller.
    pub fn new(size: usize) -> Self {
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            door: AtomicU64::new(0),
            finished: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            asleep: AtomicUsize::new(0),
            caller_asleep: AtomicBool::new(false),
            gate: Mutex::new(()),
            wake: Condvar::new(),
            done: Condvar::new(),
        });
        let workers = (1..size.min(SIZE_MAX))
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let name = format!("kernels-{index}");
                std::thread::Builder::new().name(name).spawn(move || shared.work(index)).ok()
            })
            .collect();
        // Time decides who computes, never what.
        #[allow(clippy::disallowed_methods, reason = "no layer below this one has a clock")]
        let began = Instant::now();
        Self { shared, workers, turn: Mutex::default(), began }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// As many threads as this process may use at once: its CPU affinity and its cgroup's quota, at least 1.
    pub fn default_size() -> usize {
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
    }

    /// Threads of the team, the caller included.
    pub fn size(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job` once with every thread index below [`Team::size`], each on its own thread, and returns when all
    /// calls have. Inside a job of any team the calls are made one after the other on the calling thread instead. A
    /// panic in a call reaches the caller after the other calls have finished.
    pub fn run(&self, job: impl Fn(usize) + Sync) {
        if self.workers.is_empty() || IN_JOB.get() {
            (0..self.size()).for_each(job);
            return;
        }
        self.publish_and_help(&job, true);
    }

    /// Calls `job` once with every index below `count`; threads take the next index when they are free. A thread that
    /// comes when all are taken is not waited for. Where threads lose their processors to other programs in the middle
    /// of an index, the caller does without them for a while.
    pub fn run_each(&self, count: usize, job: impl Fn(usize) + Sync) {
        let is_alone = || self.workers.is_empty() || IN_JOB.get() || lock(&self.turn).is_dense(self.now());
        if count <= 1 || is_alone() {
            (0..count).for_each(job);
            return;
        }
        let next = AtomicUsize::new(0);
        // A caller that comes too late for any index has waited for honest work.
        let caller_had_one = AtomicBool::new(false);
        let share = |thread| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                if thread == 0 {
                    caller_had_one.store(true, Ordering::Relaxed);
                }
                job(index);
            }
        };
        let [share, waited] = self.publish_and_help(&share, false);
        if caller_had_one.into_inner() {
            lock(&self.turn).note(share, self.workers.len() as u32, waited, self.now());
        }
    }

    /// Opens the door to a job, does the caller's own share, and shuts it: when all workers have done theirs, or else
    /// at once. Returns when nobody is inside: how long the own share took, and the wait for the others.
    fn publish_and_help(&self, job: &(dyn Fn(usize) + Sync), wants_everybody: bool) -> [Duration; 2] {
        let turn = lock(&self.turn);
        // SAFETY: only the lifetime changes. Workers use the job inside the door only, and this function does not
        // return (or unwind) before the door is shut and nobody inside.
        let erased: Job =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(job) };
        let begin = self.now();
        self.shared.publish(erased);
        let own = as_job(|| job(0));
        if wants_everybody {
            let workers = self.workers.len();
            self.shared.wait_until(|shared| shared.finished.load(Ordering::SeqCst) == workers);
        }
        self.shared.door.fetch_and(!OPEN, Ordering::SeqCst);
        let done = self.now();
        self.shared.wait_until(|shared| shared.door.load(Ordering::SeqCst) & INSIDE == 0);
        let times = [done.saturating_sub(begin), self.now().saturating_sub(done)];
        let theirs = lock(&self.shared.panic).take();
        drop(turn);
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
        times
    }

    /// Cuts `out` into chunks of `chunk_len` (the last may be shorter) and calls `job(chunk_index, chunk)` for each;
    /// threads take the next chunk when they are free. Panics when `chunk_len` is 0.
    pub fn run_chunks<T: Send>(&self, out: &mut [T], chunk_len: usize, job: impl Fn(usize, &mut [T]) + Sync) {
        assert!(chunk_len > 0, "chunks hold something");
        let out = SharedSlice::new(out);
        self.run_each(out.len().div_ceil(chunk_len), |index| {
            let at = index * chunk_len;
            let len = chunk_len.min(out.len() - at);
            // SAFETY: `run_each` gives every index once, and chunks of different indices do not overlap.
            job(index, unsafe { out.part(at, len) });
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.door.fetch_add(NEXT_JOB, Ordering::SeqCst);
        {
            let _gate = lock(&self.shared.gate);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches its jobs' panics, so there is no result to look at.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn publish(&self, job: Job) {
        // SAFETY: the caller holds `turn` and the last job's door is shut with nobody inside: no worker looks at `job`.
        unsafe { *self.job.get() = Some(job) };
        self.finished.store(0, Ordering::Relaxed);
        let last = self.door.load(Ordering::Relaxed);
        // Sequentially consistent together with `asleep`: either a worker going to sleep sees the new job, or we see
        // that it sleeps. The same holds for what the caller waits for and `caller_asleep`.
        self.door.store((last & !OPEN) + NEXT_JOB + OPEN, Ordering::SeqCst);
        // Workers that are called are on their way, and need not be called for the next job too.
        if self.asleep.swap(0, Ordering::SeqCst) > 0 {
            let _gate = lock(&self.gate);
            self.wake.notify_all();
        }
    }

    /// Waits on the caller's side.
    fn wait_until(&self, is_done: impl Fn(&Self) -> bool) {
        if spin_until(|| is_done(self)) {
            return;
        }
        let mut gate = lock(&self.gate);
        self.caller_asleep.store(true, Ordering::SeqCst);
        while !is_done(self) {
            gate = self.done.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_asleep.store(false, Ordering::SeqCst);
    }

    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.wait_for_job_after(seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            seen = self.door.load(Ordering::SeqCst) / NEXT_JOB;
            if !self.enter(seen) {
                continue;
            }
            // SAFETY: `job` does not change while somebody is inside.
            let job = unsafe { *self.job.get() };
            if let Some(job) = job {
                // SAFETY: the closure lives until nobody is inside (`Team::publish_and_help`).
                let job = unsafe { &*job };
                if let Err(payload) = as_job(|| job(index)) {
                    lock(&self.panic).get_or_insert(payload);
                }
            }
            self.finished.fetch_add(1, Ordering::SeqCst);
            self.door.fetch_sub(1, Ordering::SeqCst);
            if self.caller_asleep.load(Ordering::SeqCst) {
                let _gate = lock(&self.gate);
                self.done.notify_all();
            }
        }
    }

    /// Goes in to the job with that number, if its door is open still.
    fn enter(&self, number: u64) -> bool {
        let may_enter = |door| (door / NEXT_JOB == number && door & OPEN != 0).then_some(door + 1);
        self.door.fetch_update(Ordering::SeqCst, Ordering::SeqCst, may_enter).is_ok()
    }

    fn wait_for_job_after(&self, seen: u64) {
        let is_new = || self.door.load(Ordering::SeqCst) / NEXT_JOB != seen;
        if spin_until(is_new) {
            return;
        }
        let mut gate = lock(&self.gate);
        loop {
            self.asleep.fetch_add(1, Ordering::SeqCst);
            if is_new() {
                return;
            }
            gate = self.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs one thread's share of a job, marked as such.
fn as_job(share: impl FnOnce()) -> std::thread::Result<()> {
    let outer = IN_JOB.replace(true);
    let result = catch_unwind(AssertUnwindSafe(share));
    IN_JOB.set(outer);
    result
}

/// Looks at `condition` again and again for a short while. Returns whether it became true.
fn spin_until(condition: impl Fn() -> bool) -> bool {
    let look = || {
        (0..SPINS).any(|_| {
            let is_true = condition();
            if !is_true {
                std::hint::spin_loop();
            }
            is_true
        })
    };
    #[cfg(target_arch = "x86_64")]
    {
        // One pause takes 3 cycles on one processor and 140 on another, so time is counted, not pauses.
        // SAFETY: every x86-64 processor has the counter.
        let ticks = || unsafe { std::arch::x86_64::_rdtsc() };
        let begin = ticks();
        while ticks().wrapping_sub(begin) < SPIN_TICKS {
            if look() {
                return true;
            }
        }
        condition()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        (0..SPIN_ROUNDS).any(|_| look()) || condition()
    }
}

/// A panic never leaves the small critical sections here half done, so poison means nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_index_runs_exactly_once_per_job() {
        for size in 1..=4 {
            let team = Team::new(size);
            assert_eq!(team.size(), size);
            let counts: Vec<AtomicUsize> = (0..size).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..2000 {
                team.run(|index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2000));
        }
    }

    #[test]
    fn workers_that_went_to_sleep_wake_for_the_next_job() {
        let team = Team::new(3);
        for pause in 0..20 {
            let sum = AtomicUsize::new(0);
            team.run(|index| {
                sum.fetch_add(index, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 3);
            // Longer than the workers spin.
            std::thread::park_timeout(std::time::Duration::from_millis(pause));
        }
    }

    #[test]
    fn chunks_cover_the_output_once_each() {
        for size in 1..=3 {
            let team = Team::new(size);
            for len in [0, 1, 7, 8, 9, 1000] {
                let mut out = vec![0_usize; len];
                team.run_chunks(&mut out, 8, |index, chunk| {
                    for (i, value) in chunk.iter_mut().enumerate() {
                        *value += index * 8 + i + 1;
                    }
                });
                assert!(out.iter().enumerate().all(|(i, value)| *value == i + 1));
            }
        }
    }

    #[test]
    fn a_panic_in_any_thread_reaches_the_caller_and_the_team_works_on() {
        let team = Team::new(3);
        for guilty in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(|index| assert_ne!(index, guilty, "the planned panic"));
            }));
            assert!(result.is_err());
            let count = AtomicUsize::new(0);
            team.run(|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.load(Ordering::Relaxed), 3);
        }
    }

    #[test]
    fn a_job_may_use_the_team_itself() {
        let team = Team::new(2);
        let count = AtomicUsize::new(0);
        team.run(|_| {
            team.run(|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(count.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn several_callers_take_turns() {
        let team = Team::new(2);
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        team.run(|_| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 1600);
    }

    #[test]
    fn teams_can_be_dropped_used_or_unused() {
        for round in 0..50 {
            let team = Team::new(4);
            if round % 2 == 0 {
                team.run(|_| ());
            }
        }
    }
}
