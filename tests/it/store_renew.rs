//! What `renew` makes of a claim.

use duepost::store::{Claim, Renewal, Renewed};

use crate::{
    store_kit::{Kit, retry_at},
    support::ms,
};

#[tokio::test]
async fn a_renewal_holds_on_tells_of_a_cancel_and_brings_successes() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (task, claim) = kit.given_claimed("a").await;
    let renew = async |claim: &Claim, won: &[&str]| {
        let renewal = Renewal { lease: claim.lease.clone(), won: won.iter().map(|w| (*w).to_owned()).collect() };
        kit.store.renew(&kit.queue, ms(5000), &[renewal]).await.unwrap()[0]
    };
    kit.advance(900);
    assert_eq!(renew(&claim, &["h"]).await, Renewed::Held);
    assert!(kit.score("active", &task.id).await.unwrap() >= kit.now().await + 4900);
    kit.advance(1001);
    assert!(kit.push(5).await.is_empty());
    assert_eq!(kit.get(&task.id).await.unwrap().delivered_to, ["h"]);
    kit.cancel(&task.id).await;
    assert_eq!(renew(&claim, &["h", "i"]).await, Renewed::Cancelling);
    assert_eq!(kit.get(&task.id).await.unwrap().delivered_to, ["h", "i"]);

    let (first, second) = {
        let (_, first) = kit.given_claimed("b").await;
        kit.lapse().await;
        (first, kit.claim_one().await)
    };
    assert_eq!(renew(&first, &["h"]).await, Renewed::LeaseLost);
    assert_eq!(renew(&second, &[]).await, Renewed::Held);
    kit.end(&second, retry_at(0)).await;
    assert_eq!(renew(&second, &[]).await, Renewed::LeaseLost, "it waits again");
    assert!(kit.score("active", &second.id).await.is_none());
    kit.assert_sound().await;
}
