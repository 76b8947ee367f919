//! `duepost fsck`: looks once at everything that is kept, beside running services or without any.

use std::sync::Arc;

use super::{
    AppError, open_store,
    redis::{Redis, judge},
};
use crate::{
    config::{Config, Mode},
    store::{Audit, Servers, embedded},
    telemetry::Metrics,
};

/// Audits the data of these settings. A private Redis that a service runs is asked as it runs; without a service it is
/// started for the time being.
///
/// # Errors
/// See [`AppError`].
pub async fn fsck(config: Config, repair: bool) -> Result<Audit, AppError> {
    let redis = match embedded::running(&config.data_dir).filter(|_| config.has_private_redis()) {
        Some(url) => Redis { servers: Servers::Single(url), shown: "private".to_owned(), private: None },
        None => Redis::start(&config, Mode::Serve).await?,
    };
    let audit = async {
        let store = open_store(&config, &redis, Arc::new(Metrics::new(0)))?;
        judge(&store.ping().await?, &redis.servers)?;
        Ok(store.audit(repair).await?)
    };
    let audit = audit.await;
    redis.stop().await;
    audit
}
