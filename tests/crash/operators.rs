//! What an operator does with the data folder between two runs of the server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Site, journaled};

fn lines(output: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether a file below has this text in it.
fn holds(folder: &Path, text: &str) -> bool {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            return holds(&path, text);
        }
        std::fs::read(path).unwrap().windows(text.len()).any(|bytes| bytes == text.as_bytes())
    })
}

#[tokio::test]
async fn what_an_operator_deletes_is_gone_and_what_stays_survives_a_compaction() {
    let site = Site::scripted(&json!([{"deltas": ["one ", "two ", "three"]}]));
    let server = site.start().await;
    let (kept, kept_in) = server.begin("1", json!({"input": "go"})).await;
    let secret = "a word that nobody else says";
    let (gone, gone_in) = server.begin("2", json!({"input": secret})).await;
    let before = server.until_ended(&kept_in, &kept, 0).await;
    server.until_ended(&gone_in, &gone, 0).await;
    let refused = site.refused(&["conversations", "compact"]);
    assert!(refused.contains("another midstream runs on this data folder"), "{refused}");
    server.kill();

    let listed = lines(&site.run(&["conversations", "list"], b""));
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|line| line["active"] == false && line["event_bytes"].as_u64() > Some(0)), "{listed:?}");
    let is_told =
        |line: &Value| line["title"].is_string() && line["created_at"].is_string() && line["last_at"].is_string();
    assert!(listed.iter().all(is_told), "{listed:?}");
    let shown = lines(&site.run(&["conversations", "show", &gone_in], b""));
    assert_eq!(shown[0]["event"]["type"], "conversation_created");
    site.run(&["conversations", "delete", &gone_in], b"");
    let refused = site.refused(&["conversations", "show", &gone_in]);
    assert!(refused.contains("there is no conversation"), "{refused}");
    assert!(holds(&site.path().join("data"), secret), "a deletion hides");
    site.run(&["conversations", "compact"], b"");
    assert!(!holds(&site.path().join("data"), secret), "and a compaction makes it physical");
    site.run(&["conversations", "repair"], b"");

    let server = site.start().await;
    assert_eq!(server.get(&format!("/v1/responses/{gone}")).await["error"]["code"], "response_not_found");
    assert_eq!(
        server.get(&format!("/v1/conversations/{gone_in}/events")).await["error"]["code"],
        "conversation_not_found"
    );
    let after = server.until_ended(&kept_in, &kept, 0).await;
    assert_eq!(journaled(&after), journaled(&before));
}

/// The steps in which a compacted journal takes the old one's place.
const SWAP_STEPS: usize = 9;

#[tokio::test]
async fn a_compaction_that_dies_at_any_of_its_steps_leaves_every_conversation_as_it_was() {
    let site = Site::scripted(&json!([{"deltas": ["one ", "two ", "three"]}]));
    let server = site.start().await;
    let (kept, kept_in) = server.begin("1", json!({"input": "go"})).await;
    let (gone, gone_in) = server.begin("2", json!({"input": "go"})).await;
    let before = server.until_ended(&kept_in, &kept, 0).await;
    server.until_ended(&gone_in, &gone, 0).await;
    server.terminate().await;
    site.run(&["conversations", "delete", &gone_in], b"");
    let dumped = site.run(&["conversations", "dump"], b"");

    let compact = ["conversations", "compact"];
    let mut deaths = 0;
    for point in std::iter::once("compaction_built:1".to_owned()).chain((1..).map(|step| format!("swap_step:{step}"))) {
        if !site.dies_at(&compact, &point) {
            break;
        }
        deaths += 1;
        // Whoever comes next puts it right, and may die of it too.
        assert!(site.dies_at(&["conversations", "dump"], "swap_step:1"));
        assert!(site.run(&["conversations", "dump"], b"") == dumped, "another dump after {point}");
    }
    // Finishing what the one before left, and removing what was there, are steps too.
    assert!(deaths > SWAP_STEPS, "it died {deaths} times only");

    let server = site.start().await;
    assert_eq!(journaled(&server.until_ended(&kept_in, &kept, 0).await), journaled(&before));
    assert_eq!(server.get(&format!("/v1/responses/{gone}")).await["error"]["code"], "response_not_found");
}

/// Takes one event out of the journal, as a bad sector might.
fn lose_event(site: &Site, conversation: &str, seq: u64) {
    let journal = sled::Config::new().path(site.path().join("data/journal")).flush_every_ms(None).open().unwrap();
    let id: u128 = u128::from_str_radix(conversation.trim_start_matches("conv_"), 16).unwrap();
    let key = [b"j".as_slice(), &id.to_be_bytes(), &seq.to_be_bytes(), &0_u16.to_be_bytes()].concat();
    journal.remove(key).unwrap().expect("the event has a row of its own");
    journal.flush().unwrap();
}

#[tokio::test]
async fn a_conversation_with_an_event_that_cannot_be_read_is_marked_in_the_list() {
    let site = Site::scripted(&json!([{"deltas": ["fine"]}]));
    let server = site.start().await;
    let mut conversations = Vec::new();
    for key in ["1", "2"] {
        let (response, conversation) = server.begin(key, json!({"input": "go"})).await;
        server.until_ended(&conversation, &response, 0).await;
        conversations.push(conversation);
    }
    server.kill();
    lose_event(&site, &conversations[0], 3);
    let listed = lines(&site.run(&["conversations", "list"], b""));
    let of = |id: &String| listed.iter().find(|line| line["conversation"] == **id).unwrap();
    let (hurt, whole) = (of(&conversations[0]), of(&conversations[1]));
    let damage = hurt["damaged"].as_str().unwrap();
    assert!(damage.contains("is damaged at seq 3"), "{damage}");
    assert_eq!(hurt["last_seq"], whole["last_seq"], "what is known is told: {hurt}");
    assert_eq!(whole.get("damaged"), None);
}

/// Every file below, with its bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() { files(&path) } else { BTreeMap::from([(path.clone(), std::fs::read(path).unwrap())]) }
        })
        .collect()
}

#[tokio::test]
async fn doctor_names_damaged_conversations_and_only_looks() {
    let site = Site::scripted(&json!([{"deltas": ["fine"]}]));
    let data = site.path().join("data");
    let said = |wanted: &str, content: bool| {
        let (said, is_content) = site.doctor();
        assert!(said.contains(wanted) && is_content == content, "{wanted:?} is not in {said}");
        assert!(said.contains("\nscripted\n"), "models are described all the same: {said}");
        said
    };
    said("journal        none yet", true);
    assert!(!data.exists(), "the folder is made by who serves");
    let server = site.start().await;
    let mut conversations = Vec::new();
    for key in ["1", "2"] {
        let (response, conversation) = server.begin(key, json!({"input": "go"})).await;
        server.until_ended(&conversation, &response, 0).await;
        conversations.push(conversation);
    }
    said("not looked at: another midstream runs on this folder", true);
    server.terminate().await;
    let whole = files(&data);
    said("nothing is damaged", true);
    lose_event(&site, &conversations[0], 3);
    let damaged = files(&data);
    let told = said(&format!("damaged        {} is damaged at seq 3: ", conversations[0]), false);
    assert!(told.contains("loses ") && told.contains("conversations repair --apply --data-dir"), "{told}");
    assert!(!told.contains(&conversations[1]), "{told}");
    assert!(files(&data) == damaged, "a look changed the folder");

    // A flipped bit that takes acknowledged writes along, whose conversation nobody can tell.
    let journal = data.join("journal/db");
    let mut bytes = whole[&journal].clone();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end / 2] ^= 1;
    std::fs::remove_dir_all(data.join("journal")).unwrap();
    for (path, bytes) in &whole {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    std::fs::write(&journal, &bytes).unwrap();
    let flipped = files(&data);
    said("acknowledged writes are missing", false);
    assert!(files(&data) == flipped, "a look changed the folder");
    std::fs::remove_file(&journal).unwrap();
    said("not readable: ", false);
}

#[tokio::test]
async fn what_changes_a_damaged_journal_keeps_it_as_it_was_found() {
    let site = Site::scripted(&json!([{"deltas": ["fine"]}]));
    let server = site.start().await;
    let (response, conversation) = server.begin("1", json!({"input": "go"})).await;
    server.until_ended(&conversation, &response, 0).await;
    server.kill();
    let journal = site.path().join("data/journal/db");
    let mut bytes = std::fs::read(&journal).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end / 2] ^= 1;
    std::fs::write(&journal, &bytes).unwrap();
    let kept = site.path().join("data/journal.damaged");
    for command in [&["conversations", "delete", &conversation][..], &["conversations", "compact"]] {
        let refused = site.refused(command);
        assert!(refused.contains("acknowledged writes are missing") && refused.contains("is kept as"), "{refused}");
        assert!(std::fs::read(kept.join("db")).unwrap() == bytes, "what is kept is not what was there");
    }
}

#[tokio::test]
async fn a_repaired_conversation_goes_on_in_a_new_epoch_and_old_cursors_go_back_with_it() {
    let words: Vec<_> = (0..10).map(|word| format!("word{word} ")).collect();
    let site = Site::scripted(&json!([{"deltas": words}]));
    let server = site.start().await;
    let (response, conversation) = server.begin("1", json!({"input": "go"})).await;
    let before = server.until_ended(&conversation, &response, 0).await;
    let terminal = before.last().unwrap()["seq"].as_u64().unwrap();
    server.kill();

    // The terminal is the last event, and never folded.
    lose_event(&site, &conversation, terminal);
    let path = format!("/v1/conversations/{conversation}/events?after=0");
    let server = site.start().await;
    assert_eq!(server.get(&path).await["error"]["code"], "conversation_damaged");
    server.kill();
    let refused = site.refused(&["conversations", "repair"]);
    assert!(refused.contains("nothing was changed"), "{refused}");
    let said = String::from_utf8(site.run(&["conversations", "repair", "--apply"], b"")).unwrap();
    let expected = format!("{conversation} is damaged at seq {terminal}: ");
    assert!(said.starts_with(&expected) && said.contains("loses 1 events, 0 responses"), "{said}");

    let server = site.start().await;
    let after = journaled(&server.until_ended(&conversation, &response, 0).await);
    let (cut, before) = (terminal as usize - 1, journaled(&before));
    assert_eq!(after[..cut], before[..cut]);
    assert_eq!(after[cut]["type"], "conversation.rewound");
    assert_eq!((&after[cut]["epoch"], &after[cut]["seq"]), (&json!(1), &json!(terminal)));
    assert_eq!(after[cut]["rewound_seq"], json!(terminal - 1), "the last event that is what it was");
    let mut resumed = server.follow(&format!("/v1/conversations/{conversation}/events?after=0-{terminal}")).await;
    let snapshot = resumed.next().await.unwrap();
    assert_eq!((&snapshot["type"], &snapshot["epoch"]), (&json!("conversation.snapshot"), &json!(1)));
    assert_eq!(resumed.next().await.as_ref(), Some(&after[cut]), "a cursor of the old epoch skips what is new");
    assert_eq!(resumed.last_id, Some(format!("1-{terminal}")), "whoever comes back with it does not go back again");
    resumed.next().await.unwrap();
    assert_eq!(resumed.last_id, Some(format!("1-{}", terminal + 1)));
}

#[tokio::test]
async fn a_server_that_dies_before_its_first_key_is_in_place_makes_another_and_keeps_that() {
    let site = Site::scripted(&json!([{"deltas": ["<think>hm</think>", "so"]}]));
    assert!(
        site.try_start(&[("MIDSTREAM_CRASH", "seal_written:1")]).await.is_none(),
        "it makes a key before it serves"
    );
    let asked = json!({"input": "go", "include": ["reasoning.encrypted_content"]});
    let server = site.start().await;
    let (_, response) = server.post("/v1/responses", "1", &asked).await;
    server.kill();
    let first = &response["output"][0];
    assert!(first["encrypted_content"].is_string(), "{first}");
    let server = site.start().await;
    let reasoning = json!({"type": "reasoning", "summary": [], "encrypted_content": first["encrypted_content"]});
    let input = json!([{"role": "user", "content": "go"}, reasoning, {"role": "user", "content": "on"}]);
    let (_, response) = server.post("/v1/responses", "2", &json!({"input": input})).await;
    let items = server.get(&format!("/v1/responses/{}/input_items?order=asc", response["id"].as_str().unwrap())).await;
    assert_eq!(items["data"][1]["content"][0]["text"], "hm", "the same key opens it after restarts: {items}");
}
