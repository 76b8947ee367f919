//! From a name to its addresses.
//!
//! The system's look-up blocks a thread for as long as a name server is silent, and those threads are few. So a name
//! is looked up once at a time: all calls that want it meanwhile share the answer, and one dead name server costs one
//! thread per name, not one per call. Nothing is kept: the next dial asks again.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};

/// Turns a name into addresses. The second implementation is that of the tests, which lies.
pub trait Resolve: Send + Sync + 'static {
    /// All addresses of a name, the preferred one first.
    fn resolve(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// What the operating system answers.
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|addr| addr.ip()).collect()) })
    }
}

/// Addresses, or why there are none, in a form that many can have.
pub type Found = Result<Vec<IpAddr>, String>;

/// Asks a resolver for each name once at a time.
#[derive(Clone)]
pub struct OneAtATime {
    resolver: Arc<dyn Resolve>,
    under_way: Arc<Mutex<HashMap<String, Shared<BoxFuture<'static, Found>>>>>,
}

impl OneAtATime {
    /// In front of this resolver.
    pub fn new(resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver, under_way: Arc::default() }
    }

    /// The addresses of a name: from the look-up under way, or from a new one. A look-up goes on when nobody waits for
    /// it any more, for the thread that it blocks cannot be had back either.
    pub async fn resolve(&self, host: &str) -> Found {
        let look_up = {
            let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            under_way.entry(host.to_owned()).or_insert_with(|| self.begin(host.to_owned())).clone()
        };
        look_up.await
    }

    fn begin(&self, host: String) -> Shared<BoxFuture<'static, Found>> {
        let (asking, under_way) = (self.resolver.resolve(host.clone()), Arc::clone(&self.under_way));
        let task = tokio::spawn(async move {
            let found = asking.await.map_err(|error| error.to_string());
            under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&host);
            found
        });
        async { task.await.unwrap_or_else(|error| Err(error.to_string())) }.boxed().shared()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::sync::Semaphore;

    use super::*;

    /// Answers its n-th question with 127.0.0.n, as soon as it may.
    struct Slow {
        asked: AtomicUsize,
        may_answer: Arc<Semaphore>,
    }

    impl Resolve for Slow {
        fn resolve(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            let n = u8::try_from(self.asked.fetch_add(1, SeqCst) + 1).unwrap();
            let may_answer = Arc::clone(&self.may_answer);
            Box::pin(async move {
                may_answer.acquire().await.unwrap().forget();
                Ok(vec![IpAddr::from([127, 0, 0, n])])
            })
        }
    }

    #[tokio::test]
    async fn c087_calls_share_the_look_up_under_way_and_the_next_one_asks_again() {
        let may_answer = Arc::new(Semaphore::new(0));
        let slow = Arc::new(Slow { asked: AtomicUsize::new(0), may_answer: Arc::clone(&may_answer) });
        let resolver = OneAtATime::new(Arc::clone(&slow) as Arc<dyn Resolve>);
        // a call that gives up leaves its look-up to the next one
        assert!(resolver.resolve("a.example").now_or_never().is_none());
        let both = async { tokio::join!(resolver.resolve("a.example"), resolver.resolve("a.example")) };
        let (both, ()) = tokio::join!(both, async { may_answer.add_permits(1) });

        assert_eq!(both.0, Ok(vec![IpAddr::from([127, 0, 0, 1])]));
        assert_eq!((both.0, slow.asked.load(SeqCst)), (both.1, 1));

        may_answer.add_permits(2);
        assert_eq!(resolver.resolve("a.example").await, Ok(vec![IpAddr::from([127, 0, 0, 2])]));
        assert_eq!(resolver.resolve("b.example").await, Ok(vec![IpAddr::from([127, 0, 0, 3])]));
    }
}
