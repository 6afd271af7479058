// The requests to etcd, the meaning of its answers, and the election's conclusions.
#include "lockstep/launch/etcd_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "lockstep/core/errors.h"
#include "lockstep/launch/etcd.h"

namespace lockstep::inline v0::launch {
namespace etcd_protocol_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Ask = Election::Request::Kind;

TEST(EtcdProtocol, Base64) {
  EXPECT_EQ(base64_encode(""), "");
  EXPECT_EQ(base64_encode("f"), "Zg==");
  EXPECT_EQ(base64_encode("fo"), "Zm8=");
  EXPECT_EQ(base64_encode("foobar"), "Zm9vYmFy");
  for (const std::string& text : {std::string("\0\xff\x80z", 4), std::string("/lockstep/j/leader")})
    EXPECT_EQ(base64_decode(base64_encode(text)), text);
  for (const char* nonsense : {"Z", "Zg=", "Zg==Zg==", "Z===", "Zm9*"})
    EXPECT_THROW(base64_decode(nonsense), StoreError) << nonsense;
}

// The answer has the form of etcd 3.4's.
TEST(EtcdProtocol, ATransactionsAnswerIsTheStateOfBothKeys) {
  const EtcdKeys keys = etcd_keys("j");
  EXPECT_EQ(keys.leader, "/lockstep/j/leader");
  const EtcdState state = read_etcd_state(
      R"({"header":{"cluster_id":"1","revision":"9"},"succeeded":true,"responses":[
         {"response_put":{"header":{"revision":"9"}}},
         {"response_range":{"header":{"revision":"9"},"kvs":[{"key":"L2xvY2tzdGVwL2ovbGVhZGVy",
          "create_revision":"7","mod_revision":"7","version":"1","value":"YSAxMC4wLjAuMTo5",
          "lease":"12345678901234567"}],"count":"1"}},
         {"response_range":{"header":{"revision":"9"},"kvs":[{"key":"L2xvY2tzdGVwL2ovZ2VuZXJhdGlvbg==",
          "create_revision":"3","mod_revision":"8","value":"NCA3"}],"count":"1"}}]})",
      keys);
  EXPECT_TRUE(state.done);
  EXPECT_EQ(state.leader, "a 10.0.0.1:9");
  EXPECT_EQ(state.leader_revision, 7);
  EXPECT_EQ(state.leader_lease, 12345678901234567);
  EXPECT_EQ(state.generation, 4);
  EXPECT_EQ(state.generation_by, 7);
  EXPECT_EQ(state.generation_revision, 8);
  const EtcdState empty = read_etcd_state(
      R"({"header":{"revision":"2"},"responses":[{"response_range":{"header":{"revision":"2"}}}]})",
      keys);
  EXPECT_FALSE(empty.done);
  EXPECT_EQ(empty.leader, "");
  EXPECT_EQ(empty.generation, -1);
  for (const char* nonsense : {"", "[]", "{}", "<html>", R"({"header":{"revision":"x"}})"})
    EXPECT_THROW(read_etcd_state(nonsense, keys), StoreError) << nonsense;
}

TEST(EtcdProtocol, LeasesTokensAndErrors) {
  EXPECT_EQ(read_etcd_lease(R"({"header":{},"ID":"76","TTL":"8"})"), 76);
  EXPECT_THROW(read_etcd_lease("{}"), StoreError);
  EXPECT_TRUE(read_etcd_kept_alive(R"({"result":{"header":{},"ID":"76","TTL":"8"}})"));
  EXPECT_FALSE(read_etcd_kept_alive(R"({"result":{"header":{},"ID":"76"}})"));
  EXPECT_EQ(read_etcd_token(R"({"token":"abc.1"})"), "abc.1");
  const EtcdError wrong = read_etcd_error(
      400,
      R"({"error":"etcdserver: authentication failed, invalid user ID or password","code":3})");
  EXPECT_TRUE(wrong.refused);
  EXPECT_THAT(wrong.text, HasSubstr("invalid user ID or password"));
  EXPECT_TRUE(read_etcd_error(401, R"({"error":"invalid auth token","code":16})").token_expired);
  const EtcdError old =
      read_etcd_error(400, R"({"error":"etcdserver: revision of auth store is old","code":3})");
  EXPECT_TRUE(old.token_expired);
  EXPECT_FALSE(old.refused);
  EXPECT_FALSE(read_etcd_error(404, R"({"error":"etcdserver: requested lease not found","code":5})")
                   .refused);
  const EtcdError away = read_etcd_error(503, R"({"error":"etcdserver: no leader","code":14})");
  EXPECT_FALSE(away.refused);
  EXPECT_TRUE(read_etcd_error(404, "404 page not found\n").refused);
  EXPECT_THAT(read_etcd_error(404, "404 page not found\n").text,
              HasSubstr("HTTP status 404: 404 page not found"));
}

class ElectionTest : public testing::Test {
 protected:
  // Returns the current request, and answers it.
  Ask ask(const Election::Answer& answer) {
    const auto request = election_.next(now_);
    EXPECT_TRUE(request);
    EXPECT_FALSE(election_.next(now_)) << "one at a time";
    election_.on_answer(answer, now_);
    return request.value_or(Election::Request{}).kind;
  }
  void lead() {
    ask({.reached = true});
    EXPECT_TRUE(election_.vacant());
    election_.stand("me", now_);
    EXPECT_EQ(ask({.reached = true,
                   .granted = true,
                   .leader = "me",
                   .lease = 5,
                   .revision = 6,
                   .newest = 3}),
              Ask::kCampaign);
    EXPECT_EQ(election_.standing(), Election::Standing::kLeading);
  }

  Election::Time now_{};
  Election election_{{.lease = seconds(9)}, now_};
};

TEST_F(ElectionTest, WhoLeadsIsLookedForAndTheKeyIsTakenWhereNobodyDoes) {
  EXPECT_EQ(ask({.reached = true, .leader = "other 1.2.3.4:5"}), Ask::kLook);
  EXPECT_EQ(election_.leader(), "other 1.2.3.4:5");
  EXPECT_FALSE(election_.vacant());
  now_ += seconds(1);
  lead();
  EXPECT_EQ(election_.newest(), 3);
}

TEST_F(ElectionTest, TheLeaseIsRenewedAndAGenerationClaimedOnce) {
  lead();
  EXPECT_FALSE(election_.next(now_ + seconds(2)));
  now_ += seconds(3);
  EXPECT_EQ(ask({.reached = true, .granted = true}), Ask::kKeepAlive);
  election_.claim(4, now_);
  EXPECT_FALSE(election_.take_claimed(4));
  EXPECT_EQ(ask({.reached = false, .error = "away"}), Ask::kClaim);
  EXPECT_EQ(election_.trouble(), "away");
  now_ += seconds(1);
  EXPECT_EQ(ask({.reached = true, .granted = true, .revision = 6, .newest = 4}), Ask::kClaim);
  EXPECT_FALSE(election_.take_claimed(5)) << "the answer is another generation's";
  election_.claim(5, now_);
  EXPECT_EQ(ask({.reached = true, .granted = true, .revision = 6, .newest = 5}), Ask::kClaim);
  EXPECT_EQ(election_.take_claimed(5), true);
  EXPECT_FALSE(election_.take_claimed(5));
}

TEST_F(ElectionTest, WhoseLeaseHasRunOutStandsAgainAndMayBeDeposed) {
  lead();
  now_ += seconds(30);
  EXPECT_EQ(ask({.reached = true, .granted = false}), Ask::kKeepAlive);
  EXPECT_EQ(election_.standing(), Election::Standing::kCandidate);
  EXPECT_EQ(ask({.reached = true, .granted = false, .leader = "other"}), Ask::kCampaign);
  EXPECT_EQ(election_.standing(), Election::Standing::kDeposed);
  EXPECT_FALSE(election_.next(now_ + seconds(60)));
}

TEST_F(ElectionTest, ARefusalIsHopeless) {
  ask({.reached = true, .refused = true, .error = "wrong password"});
  EXPECT_EQ(election_.hopeless(), "wrong password");
}

TEST_F(ElectionTest, ARefusalInMidRunEndsNoJob) {
  lead();
  now_ += seconds(3);
  EXPECT_EQ(ask({.reached = true, .refused = true, .error = "permission denied"}), Ask::kKeepAlive);
  EXPECT_EQ(election_.hopeless(), "");
  EXPECT_EQ(election_.trouble(), "permission denied");
  EXPECT_EQ(election_.standing(), Election::Standing::kLeading);
  now_ += seconds(1);
  EXPECT_EQ(ask({.reached = true, .granted = true}), Ask::kKeepAlive) << "it is asked again";
  EXPECT_EQ(election_.trouble(), "");
  election_.resign(now_);
  EXPECT_EQ(ask({.reached = true, .refused = true, .error = "permission denied"}), Ask::kResign);
  EXPECT_FALSE(election_.resigning()) << "it has been asked";
}

TEST_F(ElectionTest, OneThatNeverAnsweredIsGivenUp) {
  ask({.reached = false, .error = "refused"});
  EXPECT_EQ(election_.hopeless(), "");
  now_ += seconds(10);
  ask({.reached = false, .error = "refused"});
  EXPECT_EQ(election_.hopeless(), "refused");
}

// The thread is told to stop in the middle of a request.
TEST(EtcdElection, AnEtcdThatIsNotThereIsGivenUp) {
  EtcdAccess access;
  access.endpoints = {{"127.0.0.1", 1}};
  std::unique_ptr<EtcdElection> etcd;
  try {
    etcd = std::make_unique<EtcdElection>(access, "j", seconds(8), milliseconds(300));
  } catch (const LaunchError& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_EQ(etcd->name(), "etcd at 127.0.0.1:1");
  const Deadline deadline = Deadline::seconds(30);
  while (etcd->election().hopeless().empty() && !deadline.expired()) {
    PollSet polls;
    etcd->watch(polls);
    polls.wake_at(std::chrono::steady_clock::now() + milliseconds(100));
    polls.wait();
  }
  EXPECT_THAT(etcd->election().hopeless(), HasSubstr("127.0.0.1 port 1"));
  etcd = std::make_unique<EtcdElection>(access, "j", seconds(8), seconds(60));
  PollSet polls;
  etcd->watch(polls);
}

}  // namespace etcd_protocol_test
}  // namespace lockstep::inline v0::launch
