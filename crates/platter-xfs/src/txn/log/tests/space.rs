//! Reservations, and threads that share the space.

use std::sync::atomic::AtomicU64;

use super::*;

#[test]
fn rolling_transaction_commits_in_parts() {
    let scene = Scene::in_memory(1024, 512);
    let mut transaction = scene.begin(12 << 10);
    let mut last = 0;
    for step in 0..40 {
        edit(&mut transaction, u64::from(step % 16), 1, step);
        last = transaction.roll().unwrap();
        if step % 8 == 0 {
            scene.log.force(last).unwrap();
        }
    }
    drop(transaction);
    scene.log.force(last).unwrap();
    assert!(scene.log.grants.lock().is_alone(Head::Reserve));
    assert_eq!(scene.state()[7][128], 39);
}

#[test]
fn threads_share_forces_and_space() {
    let recorder = Recorder::new(vec![data(), log_device(1024)]);
    let [data, log] = devices_of(&recorder);
    let scene = Scene::open(data, log, 512);
    let forces = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (scene, forces) = (&scene, &forces);
            scope.spawn(move || {
                for step in 0..60_u8 {
                    let block = u64::from(thread) * 4 + u64::from(step % 4);
                    let sequence = scene.set(block, usize::from(step % 32), step);
                    if step % 3 == 0 {
                        scene.log.force(sequence).unwrap();
                        forces.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    scene.log.force_all().unwrap();
    let grants = scene.log.grants.lock();
    assert!(grants.is_alone(Head::Reserve) && grants.is_alone(Head::Write));
    drop(grants);
    assert_eq!(forces.into_inner(), 80);
    let recording = recorder.recording();
    let [data, log] = replayed(&recording, recording.events().len());
    assert!(scene.recovered(&data, log, 512) == scene.state());
}

#[test]
fn transaction_larger_than_the_log_is_refused() {
    let scene = Scene::in_memory(256, 512);
    let refused = Transaction::begin(&scene.mount, &scene.log, 1 << 20, 1).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "xfs: a transaction of this size is not supported (the log is too small)"
    );
    scene.set(0, 0, 1);
}

#[test]
fn transaction_that_outgrows_its_reservation_shuts_down() {
    let scene = Scene::in_memory(1024, 512);
    let mut transaction = scene.begin(1000);
    for block in 0..4 {
        (0..32).for_each(|chunk| edit(&mut transaction, block, chunk, 7));
    }
    let error = transaction.commit().unwrap_err().to_string();
    assert!(error.contains("transaction takes"), "{error}");
    assert!(scene.log.is_shut_down() && scene.log.force_all().is_err());
}
