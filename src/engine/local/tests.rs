//! The engine's promises, on a tiny random model, against the engine contract.

use std::path::Path;
use std::sync::mpsc as std_mpsc;

use super::load::prepare;
use super::*;
use crate::engine::backend::StepError;
use crate::engine::backend::cpu::CpuBackend;
use crate::engine::gguf::{Gguf, TensorType, Value, Writer};
use crate::engine::kv::BlockId;
use crate::engine::model::tiny::{Tiny, VOCABULARY};
use crate::engine::scheduler::Chunk;
use crate::engine::settings::Shaping;
use crate::engine::{FinishReason, KvFormat, Sampling, SequenceId, Standing};

pub(super) const GREEDY: Sampling =
    Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 11, choice: 0, shaping: Shaping::NONE };
pub(super) const WARM: Sampling =
    Sampling { temperature: 2.0, top_k: 100, top_p: 0.98, min_p: 0.001, seed: 11, choice: 0, shaping: Shaping::NONE };

/// Keys and values of one token of the tiny model: two layers, two heads of 64 values, as f16.
pub(super) const KV_TOKEN_BYTES: usize = 2 * 2 * 2 * 64 * 2;

pub(super) fn parts(options: &LoadOptions) -> (ModelInfo, Scheduler, CpuBackend) {
    parts_of(Tiny::default(), options)
}

fn parts_of(tiny: Tiny, options: &LoadOptions) -> (ModelInfo, Scheduler, CpuBackend) {
    let options = LoadOptions { threads: Some(1), ..options.clone() };
    prepare(Path::new("tiny.gguf"), &[&tiny.file()], &options).unwrap()
}

pub(super) fn engine(options: &LoadOptions) -> LocalEngine {
    engine_of(Tiny::default(), options)
}

pub(super) fn engine_of(tiny: Tiny, options: &LoadOptions) -> LocalEngine {
    let (model, scheduler, backend) = parts_of(tiny, options);
    LocalEngine::start(model, scheduler, backend, options.sequences_max, options.clock.clone()).unwrap()
}

pub(super) fn prompt(seed: u32, length: u32) -> Arc<[u32]> {
    (0..length).map(|index| (seed * 37 + index * 13 + index * index) % 256).collect()
}

pub(super) fn request(prompt: Arc<[u32]>, max_tokens: u32) -> GenerationRequest {
    GenerationRequest { sampling: GREEDY, ..GenerationRequest::greedy(prompt, max_tokens) }
}

#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) cached: Option<u32>,
    pub(super) tokens: Vec<u32>,
    pub(super) finish: Option<FinishReason>,
}

pub(super) fn read(mut generation: Generation) -> Answer {
    let mut answer = Answer { cached: None, tokens: Vec::new(), finish: None };
    while let Some(event) = generation.events.blocking_recv() {
        assert_eq!(answer.finish, None, "nothing follows Finished");
        match event {
            EngineEvent::Started { cached_tokens } => answer.cached = Some(cached_tokens),
            EngineEvent::Token(token) | EngineEvent::Weighed(token, _) => answer.tokens.push(token),
            EngineEvent::Piece(_) | EngineEvent::Counted(_) => panic!("it tells tokens"),
            EngineEvent::Finished(finish) => answer.finish = Some(finish),
        }
    }
    answer
}

pub(super) fn generate(engine: &LocalEngine, request: GenerationRequest) -> Answer {
    read(engine.submit(request).unwrap())
}

/// Holds the backend's steps until the test lets them go, one by one or for good.
struct Gated {
    backend: CpuBackend,
    /// Each message lets one step go; when the sender is gone all go.
    gate: std_mpsc::Receiver<()>,
    /// Told when a step has come to the gate: the tokens of each sequence in it.
    arrived: std_mpsc::Sender<Vec<(SequenceId, usize)>>,
}

impl Backend for Gated {
    fn forward(&mut self, chunks: &[Chunk]) -> Result<&[f32], StepError> {
        let _ = self.arrived.send(chunks.iter().map(|chunk| (chunk.sequence, chunk.tokens.len())).collect());
        let _ = self.gate.recv();
        self.backend.forward(chunks)
    }

    fn vocabulary(&self) -> usize {
        self.backend.vocabulary()
    }

    fn block_bytes(&self) -> usize {
        self.backend.block_bytes()
    }

    fn read_block(&self, block: BlockId) -> Vec<u8> {
        self.backend.read_block(block)
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        self.backend.write_block(block, bytes);
    }
}

pub(super) struct Gate {
    pub(super) open: std_mpsc::Sender<()>,
    pub(super) arrived: std_mpsc::Receiver<Vec<(SequenceId, usize)>>,
}

fn gated_engine(options: &LoadOptions) -> (LocalEngine, Gate) {
    gated_engine_of(parts(options), options.sequences_max)
}

pub(super) fn gated_engine_of(
    (model, scheduler, backend): (ModelInfo, Scheduler, CpuBackend),
    sequences_max: usize,
) -> (LocalEngine, Gate) {
    let ((open, gate), (arrived, arrivals)) = (std_mpsc::channel(), std_mpsc::channel());
    let engine = LocalEngine::start(model, scheduler, Gated { backend, gate, arrived }, sequences_max, Clock::System);
    (engine.unwrap(), Gate { open, arrived: arrivals })
}

#[test]
fn four_sequences_are_decoded_in_one_step_and_each_answers_as_if_alone() {
    let alone: Vec<_> =
        (0..4).map(|seed| generate(&engine(&LoadOptions::default()), request(prompt(seed, 20), 30))).collect();
    let (engine, gate) = gated_engine(&LoadOptions { guessed_tokens: 0, ..LoadOptions::default() });
    let first = engine.submit(request(prompt(0, 20), 30)).unwrap();
    gate.arrived.recv().unwrap();
    let mut all = vec![first];
    all.extend((1..4).map(|seed| engine.submit(request(prompt(seed, 20), 30)).unwrap()));
    drop(gate.open);
    let together: Vec<_> = all.into_iter().map(read).collect();
    assert_eq!(together, alone);
    let stats = engine.stats();
    assert_eq!(stats.sequences_max, 4);
    assert!(stats.steps_by_sequences[4] >= 28, "{stats:?}");
    assert_eq!(stats.tokens_sampled, 4 * 30);
}

#[test]
fn an_answer_resumed_at_any_token_ends_with_the_same_tokens() {
    let engine = engine(&LoadOptions::default());
    for sampling in [GREEDY, WARM] {
        let whole = GenerationRequest { sampling, ..request(prompt(1, 50), 24) };
        let expected = generate(&engine, whole.clone()).tokens;
        assert_eq!(expected.len(), 24);
        for cut in [0, 1, 7, 15, 16, 23] {
            let resumed: Arc<[u32]> = expected[..cut].into();
            // Another salt: nothing comes from the cache.
            let resume = GenerationRequest { resumed, cache_salt: 7 + cut as u64, ..whole.clone() };
            let answer = generate(&engine, resume);
            assert_eq!(answer.tokens, expected[cut..], "cut at {cut}");
            assert_eq!(answer.finish, Some(FinishReason::Length));
        }
    }
}

#[test]
fn guessing_changes_no_token_and_saves_steps() {
    let plain = engine(&LoadOptions { guessed_tokens: 0, ..LoadOptions::default() });
    let guessing = engine(&LoadOptions::default());
    // Twice the same text, and an answer that a small model soon repeats.
    let twice: Arc<[u32]> = prompt(4, 40).iter().chain(prompt(4, 40).iter()).copied().collect();
    let warm = Sampling { temperature: 0.2, ..WARM };
    for sampling in [GREEDY, warm, WARM] {
        let requests = || {
            [twice.clone(), prompt(5, 30)]
                .map(|prompt| GenerationRequest { sampling: sampling.clone(), ..request(prompt, 200) })
        };
        let expected = requests().map(|request| generate(&plain, request));
        assert_eq!(requests().map(|request| generate(&guessing, request)), expected, "alone");
        let together =
            requests().map(|request| guessing.submit(GenerationRequest { cache_salt: 1, ..request }).unwrap());
        for (generation, expected) in together.into_iter().zip(expected) {
            assert_eq!(read(generation).tokens, expected.tokens, "beside another");
        }
        // The reader of one token's room is never given two.
        let slow = requests().map(|request| GenerationRequest { channel_capacity: 1, cache_salt: 2, ..request });
        assert_eq!(generate(&guessing, slow[0].clone()).tokens.len(), 200);
    }
    let (plain, guessing) = (plain.stats(), guessing.stats());
    assert_eq!((plain.tokens_guessed, plain.tokens_guessed_right), (0, 0));
    assert!(guessing.tokens_guessed >= guessing.tokens_guessed_right, "{guessing:?}");
    assert!(guessing.tokens_guessed_right > 300, "{guessing:?}");
    assert!(guessing.steps + 300 < guessing.tokens_sampled, "{guessing:?}");
}

#[test]
fn a_model_whose_layers_remember_their_last_inputs_is_not_guessed_ahead() {
    let tiny = || Tiny { architecture: "lfm2", layers: 4, ..Tiny::default() };
    let plain = engine_of(tiny(), &LoadOptions { guessed_tokens: 0, ..LoadOptions::default() });
    let engine = engine_of(tiny(), &LoadOptions::default());
    let twice: Arc<[u32]> = prompt(4, 40).iter().chain(prompt(4, 40).iter()).copied().collect();
    assert_eq!(generate(&engine, request(twice.clone(), 200)), generate(&plain, request(twice, 200)));
    assert_eq!(engine.stats().tokens_guessed, 0);
}

#[test]
fn a_resume_whose_tokens_are_all_there_ends_at_once() {
    let engine = engine(&LoadOptions::default());
    let full = GenerationRequest { resumed: Arc::new([1, 2, 3]), ..request(prompt(1, 5), 3) };
    assert_eq!(generate(&engine, full), ended(FinishReason::Length));
    let stopped =
        GenerationRequest { resumed: Arc::new([1, 2]), stop_tokens: Arc::new([2]), ..request(prompt(1, 5), 9) };
    assert_eq!(generate(&engine, stopped), ended(FinishReason::Stop));
}

fn ended(finish: FinishReason) -> Answer {
    Answer { cached: None, tokens: Vec::new(), finish: Some(finish) }
}

#[test]
fn a_stop_token_is_delivered_and_ends_the_answer() {
    let engine = engine(&LoadOptions::default());
    let free = generate(&engine, request(prompt(2, 30), 20)).tokens;
    let stop = free[9];
    let until = free.iter().position(|token| *token == stop).unwrap() + 1;
    let answer = generate(&engine, GenerationRequest { stop_tokens: Arc::new([stop]), ..request(prompt(2, 30), 20) });
    assert_eq!((answer.tokens, answer.finish), (free[..until].to_vec(), Some(FinishReason::Stop)));
}

#[test]
fn an_abort_is_confirmed_and_the_successor_reuses_the_blocks() {
    let (engine, gate) = gated_engine(&LoadOptions::default());
    let mut first = engine.submit(request(prompt(3, 40), 1000)).unwrap();
    let mut answer = Vec::new();
    while answer.len() < 30 {
        gate.open.send(()).unwrap();
        gate.arrived.recv().unwrap();
        while let Ok(event) = first.events.try_recv() {
            answer.extend(if let EngineEvent::Token(token) = event { Some(token) } else { None });
        }
    }
    first.abort.abort();
    let steered: Arc<[u32]> = prompt(3, 40).iter().chain(&answer).copied().chain([5, 6, 7]).collect();
    let successor = engine.submit(request(steered.clone(), 5)).unwrap();
    drop(gate.open);
    assert_eq!(read(first).finish, Some(FinishReason::Aborted));
    let successor = read(successor);
    // Of 70 tokens at least 69 have been run: four full blocks.
    assert_eq!(successor.cached, Some(64));
    let alone = generate(&engine, GenerationRequest { cache_salt: 1, ..request(steered, 5) });
    assert_eq!(successor.tokens, alone.tokens, "the cache changes no token");
}

/// Aborts a sequence with this prompt while its step `steps` is at the gate, beside another sequence; gives the tokens
/// of it in that step. No later step has any.
fn run_after_abort(prompt_tokens: u32, steps: usize) -> usize {
    let mate = generate(&engine(&LoadOptions::default()), request(prompt(2, 10), 20)).tokens;
    let (engine, gate) = gated_engine(&LoadOptions { guessed_tokens: 0, ..LoadOptions::default() });
    let doomed = engine.submit(request(prompt(1, prompt_tokens), 1_000)).unwrap();
    for _ in 1..steps {
        gate.arrived.recv().unwrap();
        gate.open.send(()).unwrap();
    }
    let under_way = gate.arrived.recv().unwrap();
    doomed.abort.abort();
    let other = engine.submit(request(prompt(2, 10), 20)).unwrap();
    drop(gate.open);
    assert_eq!(read(doomed).finish, Some(FinishReason::Aborted));
    assert_eq!(read(other).tokens, mate, "another sequence is not disturbed");
    let [(id, tokens)] = under_way[..] else { panic!("{under_way:?}") };
    assert!(gate.arrived.try_iter().flatten().all(|(later, _)| later != id), "a later step holds the sequence");
    tokens
}

#[test]
fn an_abort_is_followed_by_no_more_than_the_step_that_is_under_way() {
    assert_eq!(run_after_abort(20, 5), 1, "one decode step");
    let chunk = run_after_abort(1_000, 2);
    assert!((16..=LoadOptions::default().step_tokens).contains(&chunk), "one chunk of the prompt: {chunk}");
}

#[test]
fn a_reader_that_leaves_in_prefill_leaves_its_place_after_the_chunk_under_way() {
    let (engine, gate) = gated_engine(&LoadOptions { step_sequences: 1, ..LoadOptions::default() });
    let leaving = engine.submit(request(prompt(1, 1_000), 10)).unwrap();
    let under_way = gate.arrived.recv().unwrap();
    let waiting = engine.submit(request(prompt(2, 10), 1)).unwrap();
    drop(leaving);
    gate.open.send(()).unwrap();
    let next = gate.arrived.recv().unwrap();
    assert_eq!((next.len(), next[0].1), (1, 10), "the other prompt is run in the next step");
    drop(gate.open);
    assert_eq!(read(waiting).finish, Some(FinishReason::Length));
    assert_eq!(engine.stats().tokens_run, under_way[0].1 as u64 + 10);
}

#[test]
fn choices_of_one_prompt_run_it_once_and_draw_tokens_of_their_own() {
    let engine = engine(&LoadOptions::default());
    let ask = || {
        let choice =
            |choice| GenerationRequest { sampling: Sampling { choice, ..WARM }, ..request(prompt(1, 100), 20) };
        let asked: Vec<_> = (0..4).map(|index| engine.submit(choice(index)).unwrap()).collect();
        asked.into_iter().map(read).map(|answer| answer.tokens).collect::<Vec<_>>()
    };
    let first = ask();
    // Six full blocks of the prompt are common; of 20 tokens the last is not run.
    assert_eq!(engine.stats().tokens_run, 100 + 3 * 4 + 4 * 19);
    assert!((0..4).all(|place| !first[..place].contains(&first[place])), "{first:?}");
    assert_eq!(ask(), first);
}

#[test]
fn whatever_the_order_the_chunks_and_the_pressure_each_answers_as_if_alone() {
    let roomy = engine(&LoadOptions::default());
    let requests: Vec<_> = (0..10_u8)
        .map(|number| {
            let standing =
                Standing { owner: u64::from(number % 3), priority: [0, 10, -10, 3][usize::from(number % 4)] };
            // Two and two begin alike.
            let prompt = prompt(u32::from(number / 2), 20 + 9 * u32::from(number));
            GenerationRequest { standing, ..request(prompt, 25) }
        })
        .collect();
    let expected: Vec<_> = requests.iter().map(|request| generate(&roomy, request.clone()).tokens).collect();
    for (step_tokens, token_gap_ms, step_sequences) in [(16, 1, 3), (48, 1_000, 2), (512, 1, 8)] {
        let kv_bytes = 160 * KV_TOKEN_BYTES;
        let options = LoadOptions { kv_bytes, step_sequences, step_tokens, token_gap_ms, ..LoadOptions::default() };
        let tight = engine(&options);
        let asked: Vec<_> = requests.iter().map(|request| tight.submit(request.clone()).unwrap()).collect();
        let answers: Vec<_> = asked.into_iter().map(|generation| read(generation).tokens).collect();
        assert_eq!(answers, expected, "{options:?}");
    }
}

#[test]
fn a_dropped_reader_aborts_its_sequence() {
    let (engine, gate) = gated_engine(&LoadOptions::default());
    let first = engine.submit(request(prompt(1, 10), 1_000)).unwrap();
    gate.arrived.recv().unwrap();
    drop(first);
    let second = engine.submit(request(prompt(2, 10), 5)).unwrap();
    drop(gate.open);
    assert_eq!(read(second).finish, Some(FinishReason::Length));
    assert!(engine.stats().tokens_run < 100, "the first sequence ran on: {:?}", engine.stats());
}

#[test]
fn a_reader_that_does_not_read_holds_up_nobody_and_loses_nothing() {
    let engine = engine(&LoadOptions::default());
    let expected = generate(&engine, GenerationRequest { cache_salt: 9, ..request(prompt(1, 20), 40) }).tokens;
    let slow = engine.submit(GenerationRequest { channel_capacity: 1, ..request(prompt(1, 20), 40) }).unwrap();
    let quick = generate(&engine, request(prompt(2, 20), 60));
    assert_eq!(quick.finish, Some(FinishReason::Length));
    let slow = read(slow);
    assert_eq!((slow.tokens, slow.finish), (expected, Some(FinishReason::Length)));
}

#[test]
fn an_abort_reaches_a_sequence_whose_reader_does_not_read() {
    let engine = engine(&LoadOptions::default());
    let slow = engine.submit(GenerationRequest { channel_capacity: 1, ..request(prompt(1, 20), 40) }).unwrap();
    slow.abort.abort();
    slow.abort.abort();
    assert_eq!(read(slow).finish, Some(FinishReason::Aborted));
}

#[test]
fn more_sequences_than_fit_into_memory_all_finish_with_their_own_tokens() {
    let roomy = engine(&LoadOptions::default());
    let tight = engine(&LoadOptions { kv_bytes: 160 * KV_TOKEN_BYTES, ..LoadOptions::default() });
    let requests: Vec<_> = (0..6).map(|seed| request(prompt(seed, 40), 50)).collect();
    let running: Vec<_> = requests.iter().map(|request| tight.submit(request.clone()).unwrap()).collect();
    for (generation, request) in running.into_iter().zip(requests) {
        let answer = read(generation);
        assert_eq!(answer.tokens, generate(&roomy, request).tokens);
        assert_eq!(answer.finish, Some(FinishReason::Length));
    }
    assert!(tight.stats().preemptions > 0, "{:?}", tight.stats());
}

#[test]
fn what_does_not_fit_is_refused_and_the_end_of_the_context_ends_the_answer() {
    let engine = engine(&LoadOptions { context_length: Some(64), ..LoadOptions::default() });
    assert_eq!(engine.model().context_length, 64);
    let refused = engine.submit(request(prompt(1, 64), 1)).unwrap_err();
    assert_eq!(refused, EngineError::ContextLengthExceeded { prompt_tokens: 64, context_length: 64 });
    let answer = generate(&engine, request(prompt(1, 60), 100));
    assert_eq!((answer.tokens.len(), answer.finish), (4, Some(FinishReason::Length)));
    let small = super::tests::engine(&LoadOptions { kv_bytes: 48 * KV_TOKEN_BYTES, ..LoadOptions::default() });
    assert_eq!(small.model().context_length, 48, "never more than memory holds");
}

#[test]
fn a_prompt_that_cannot_be_run_fails_alone() {
    let engine = engine(&LoadOptions::default());
    let unknown = generate(&engine, request(Arc::new([1, VOCABULARY as u32]), 5));
    assert!(matches!(unknown.finish, Some(FinishReason::Failed(text)) if text.contains("288")));
    let empty = generate(&engine, request(Arc::new([]), 5));
    assert!(matches!(empty.finish, Some(FinishReason::Failed(_))));
    assert_eq!(generate(&engine, request(prompt(1, 5), 5)).tokens.len(), 5);
    assert_eq!(engine.health(), Ok(()));
}

#[test]
fn weights_that_are_no_numbers_fail_the_sequence_and_not_the_engine() {
    let mut file = Tiny { kind: TensorType::F32, ..Tiny::default() }.file();
    let norm = Gguf::parse(&file).unwrap().tensor("output_norm.weight").unwrap().range.clone();
    file[norm.start..norm.start + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let (model, scheduler, backend) = prepare(Path::new("x"), &[&file], &LoadOptions::default()).unwrap();
    let engine = LocalEngine::start(model, scheduler, backend, 8, Clock::System).unwrap();
    for sampling in [GREEDY, WARM] {
        let answer = generate(&engine, GenerationRequest { sampling, ..request(prompt(1, 40), 5) });
        assert!(matches!(answer.finish, Some(FinishReason::Failed(text)) if text.contains("not finite")));
    }
    assert_eq!(engine.health(), Ok(()));
}

#[test]
fn too_many_sequences_are_refused_as_overload() {
    let (engine, gate) = gated_engine(&LoadOptions { sequences_max: 5, ..LoadOptions::default() });
    let mut taken: Vec<_> = (0..5).map(|_| engine.submit(request(prompt(1, 4), 1)).unwrap()).collect();
    assert_eq!(engine.submit(request(prompt(1, 4), 1)).unwrap_err(), EngineError::Overloaded);
    drop(gate.open);
    assert_eq!(read(taken.remove(0)).finish, Some(FinishReason::Length));
    assert_eq!(generate(&engine, request(prompt(1, 4), 1)).finish, Some(FinishReason::Length));
}

#[test]
fn dropping_the_engine_ends_its_thread_and_its_channels() {
    let engine = engine(&LoadOptions::default());
    // One reader lags, so the thread may be waiting for it.
    let lagging = engine.submit(GenerationRequest { channel_capacity: 1, ..request(prompt(1, 10), 900) }).unwrap();
    let shared = Arc::downgrade(&engine.shared);
    let aborting = lagging.abort.clone();
    drop(engine);
    assert_eq!(read(lagging).finish, None);
    aborting.abort();
    drop(aborting);
    assert!(shared.upgrade().is_none(), "something of the engine is left");
}

#[test]
fn a_step_that_hangs_turns_health_red() {
    let (engine, gate) = gated_engine(&LoadOptions::default());
    let generation = engine.submit(request(prompt(1, 4), 1)).unwrap();
    gate.arrived.recv().unwrap();
    assert_eq!(engine.health(), Ok(()));
    let hung = engine.shared.health_after(STEP_DURATION_MAX + Duration::from_secs(1));
    assert!(hung.unwrap_err().contains("has been running"));
    drop(gate.open);
    assert_eq!(read(generation).finish, Some(FinishReason::Length));
    assert_eq!(engine.health(), Ok(()));
}

#[test]
fn the_fingerprint_tells_weights_and_files_apart() {
    let of = |tiny: Tiny| prepare(Path::new("x"), &[&tiny.file()], &LoadOptions::default()).unwrap().0.fingerprint;
    assert_eq!(of(Tiny::default()), of(Tiny::default()));
    assert_ne!(of(Tiny::default()), of(Tiny { seed: 2, ..Tiny::default() }));
}

#[test]
fn int8_keys_and_values_hold_nearly_twice_the_tokens_and_are_another_model_to_a_resume() {
    let options = |kv_format| LoadOptions { kv_bytes: 160 * KV_TOKEN_BYTES, kv_format, ..LoadOptions::default() };
    let engines = [KvFormat::F16, KvFormat::Q8].map(|format| engine(&options(format)));
    let [f16, q8] = engines.each_ref().map(LocalEngine::model);
    assert_eq!((f16.context_length, q8.context_length), (160, 288));
    assert_ne!(f16.fingerprint, q8.fingerprint);
    let asked = request(prompt(1, 100), 150);
    let whole = generate(&engines[1], asked.clone()).tokens;
    let alone = generate(&engine(&LoadOptions { kv_format: KvFormat::Q8, ..LoadOptions::default() }), asked).tokens;
    assert_eq!(whole, alone);
}

#[test]
fn heads_that_int8_does_not_take_are_refused_by_name() {
    let tiny = Tiny { head_dim: Some(24), ..Tiny::default() };
    let options = LoadOptions { kv_format: KvFormat::Q8, ..LoadOptions::default() };
    let refused = prepare(Path::new("x"), &[&tiny.file()], &options).err().unwrap();
    assert_eq!(refused.code(), "kv_type_unusable");
    assert!(refused.to_string().contains("\"f16\""), "{refused}");
}

#[test]
fn an_unreadable_file_is_named() {
    let text = LocalEngine::load(Path::new("/no/such.gguf"), &LoadOptions::default()).unwrap_err().to_string();
    assert!(text.contains("/no/such.gguf"), "{text}");
}

/// The default model; its file is named by a variable, because it is fetched and not kept with the sources.
pub(super) fn real_model(options: &LoadOptions) -> LocalEngine {
    let path = std::env::var_os("MIDSTREAM_TEST_MODEL").unwrap_or_else(|| {
        panic!("MIDSTREAM_TEST_MODEL must name SmolLM2-135M-Instruct.Q4_1.gguf; scripts/test fetches it and sets it")
    });
    LocalEngine::load(Path::new(&path), options).unwrap()
}

fn question(engine: &LocalEngine, text: &str) -> Arc<[u32]> {
    let prompt = format!(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    );
    engine.model().tokenizer.encode(&prompt, true).into()
}

#[test]
fn the_default_model_answers_with_the_tokens_of_an_independent_implementation() {
    let engine = real_model(&LoadOptions::default());
    // llama.cpp's greedy tokens, up to where two tokens become equally likely.
    let expected = [60, 23, 39614, 1141, 552, 28, 2618];
    let asked = question(&engine, "What is the capital of France?");
    assert_eq!(generate(&engine, request(asked, 7)).tokens, expected);
    assert_eq!(engine.model().tokenizer.decode(&expected), "L'Étoile, la");
}

#[test]
fn the_default_model_is_described_by_its_file() {
    let engine = real_model(&LoadOptions { id: Some("small".to_owned()), ..LoadOptions::default() });
    let model = engine.model();
    assert_eq!((model.id.as_str(), model.context_length, model.exact_resume), ("small", 8192, true));
    assert!(model.template.source().contains("<|im_start|>"));
    assert_eq!(model.tokenizer.vocab_size(), 49152);
}

#[test]
fn a_template_of_ones_own_is_another_model_to_a_resume_and_is_read_without_the_weights_too() {
    let own = LoadOptions { template: Some("{{ messages[0].content }}".to_owned()), ..LoadOptions::default() };
    let (with, without) = (parts(&own).0, parts(&LoadOptions::default()).0);
    assert_ne!(with.fingerprint, without.fingerprint);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, Tiny::default().file()).unwrap();
    let read = read_model_info(&path, &own).unwrap();
    assert_eq!(read.template.source(), with.template.source());
    assert_eq!((read.id.as_str(), read.context_length), ("tiny", with.context_length));
    assert_eq!(read.tokenizer.fingerprint(), with.tokenizer.fingerprint());
}

#[test]
fn a_model_in_several_files_is_the_model_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Tiny::default().file();
    let gguf = Gguf::parse(&whole).unwrap();
    let path = |number: usize| folder.path().join(format!("tiny-0000{number}-of-00003.gguf"));
    for number in 0..3 {
        let entries = gguf.metadata().iter().filter(|_| number == 0);
        let part = entries.fold(Writer::new(), |writer, (key, value)| writer.entry(key, value.clone()));
        let part = part
            .entry("split.no", Value::U16(number as u16))
            .entry("split.count", Value::U16(3))
            .entry("split.tensors.count", Value::I32(gguf.tensors().len() as i32));
        let mine = gguf.tensors().iter().enumerate().filter(|(index, _)| index % 3 == number);
        let part = mine.fold(part, |writer, (_, tensor)| {
            writer.tensor(&tensor.name, &tensor.shape, tensor.kind, whole[tensor.range.clone()].to_vec())
        });
        std::fs::write(path(number + 1), part.finish()).unwrap();
    }
    let options = LoadOptions { threads: Some(1), ..LoadOptions::default() };
    let expected = generate(&engine(&options), request(prompt(1, 40), 10)).tokens;
    for number in [1, 3] {
        let split = LocalEngine::load(&path(number), &options).unwrap();
        assert_eq!(split.model().id, "tiny");
        assert_eq!(generate(&split, request(prompt(1, 40), 10)).tokens, expected);
    }
    std::fs::remove_file(path(2)).unwrap();
    let error = LocalEngine::load(&path(1), &options).unwrap_err().to_string();
    assert!(error.contains("tiny-00002-of-00003.gguf"), "{error}");
}
