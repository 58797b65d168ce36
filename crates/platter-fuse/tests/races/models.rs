//! The threads, and what must hold of them in every schedule: that all end.

use std::sync::Arc;

use shuttle::thread;

use crate::Model;
use crate::device::{Bell, Device, Request, serve, watch};
use crate::readers::Readers;

pub(crate) const MODELS: &[Model] = &[
    Model {
        name: "every_request_is_answered",
        run: || mounted(3, true, || [series(1, 3), series(2, 3)]),
    },
    Model {
        name: "every_request_is_answered_without_patience",
        run: || mounted(3, false, || [series(1, 3), series(2, 3)]),
    },
    Model {
        name: "requests_that_wait_for_others_keep_none_waiting",
        run: || mounted(3, true, chain),
    },
    Model {
        name: "requests_that_wait_are_served_without_patience",
        run: || mounted(3, false, chain),
    },
    Model {
        name: "two_threads_serve_a_request_that_waits",
        run: || {
            mounted(2, true, || {
                [vec![waiting(1, 1, 2), quick(3, 1)], vec![quick(2, 2)]]
            })
        },
    },
    Model {
        name: "unused_mount_ends",
        run: || mounted(3, true, || [vec![]]),
    },
];

fn quick(number: u32, caller: u32) -> Request {
    Request {
        number,
        caller,
        waits_for: None,
    }
}

fn waiting(number: u32, caller: u32, other: u32) -> Request {
    Request {
        number,
        caller,
        waits_for: Some(other),
    }
}

fn series(caller: u32, count: u32) -> Vec<Request> {
    let numbers = (0..count).map(|at| caller * 100 + at);
    numbers.map(|number| quick(number, caller)).collect()
}

/// Requests that can be answered by three threads at the same time only, and then others.
fn chain() -> [Vec<Request>; 3] {
    [
        vec![waiting(1, 1, 2), quick(11, 1)],
        vec![waiting(2, 2, 3), quick(12, 2)],
        vec![quick(3, 3), quick(13, 3)],
    ]
}

/// Serves the requests of several callers by so many threads, and unmounts when they have their answers.
fn mounted<const CALLERS: usize>(
    threads: usize,
    looks_out: bool,
    requests: fn() -> [Vec<Request>; CALLERS],
) {
    let device = Arc::new(Device::default());
    let readers = Arc::new(Readers::new(Bell::default(), 2));
    let mut serving = Vec::new();
    {
        let readers = Arc::clone(&readers);
        serving.push(thread::spawn(move || watch(&readers)));
    }
    for _ in 0..threads {
        let (device, readers) = (Arc::clone(&device), Arc::clone(&readers));
        serving.push(thread::spawn(move || serve(&device, &readers, looks_out)));
    }
    let callers = requests().map(|requests| {
        let device = Arc::clone(&device);
        thread::spawn(move || {
            for request in requests {
                device.call(request);
            }
        })
    });
    for caller in callers {
        caller.join().unwrap();
    }
    device.unmount();
    for thread in serving {
        thread.join().unwrap();
    }
}
