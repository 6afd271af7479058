#include "lockstep/comm/groups/joining.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::inline v0::joining_test {
namespace {

using Places = std::vector<std::optional<JoiningPlace>>;

JoiningPlace at(int step, int pid, const std::string& host = "a") {
  return {.step = step, .pid = pid, .host = host, .what = "step " + std::to_string(step)};
}

// Rank 0 asks; the processes of `stopped` are stopped.
JoiningBlame blame(const Places& places, const std::map<int, std::string>& stopped = {}) {
  return blame_for_joining(places, 0, [&stopped](int pid) {
    const auto it = stopped.find(pid);
    return it == stopped.end() ? std::string() : it->second;
  });
}

TEST(JoiningBlame, AStoppedRankOfTheSameHostIsTheCause) {
  const Places places = {at(3, 10), at(3, 11), at(2, 12)};
  const JoiningBlame found = blame(places, {{11, "SIGSTOP"}});
  EXPECT_EQ(found.rank, 1) << "before one that is only behind: it waits for the stopped one";
  EXPECT_EQ(found.text, "rank 1 (pid 11) is stopped (SIGSTOP) while step 3");
  EXPECT_EQ(blame({at(3, 10), at(3, 11, "b")}, {{11, "SIGSTOP"}}).rank, -1)
      << "that number is another process here";
}

TEST(JoiningBlame, WhoHasNotComeOrIsBehindIsTheCause) {
  EXPECT_EQ(blame({at(2, 10), at(1, 11), std::nullopt}).text,
            "rank 2 has not come; was it started?");
  const JoiningBlame found = blame({at(3, 10), at(2, 11), at(1, 12), at(3, 13)});
  EXPECT_EQ(found.rank, 2) << "the one that is farthest behind";
  EXPECT_EQ(found.text, "rank 2 (pid 12) came no further than step 1");
}

TEST(JoiningBlame, WhoGaveUpIsNotTheCauseButWhomItWaitedFor) {
  Places places = {at(3, 10), at(2, 11), at(3, 12)};
  places[1]->gave_up = true;
  EXPECT_EQ(blame(places).rank, -1);
  places[1]->late = 2;
  EXPECT_EQ(blame(places).rank, 2);
  EXPECT_EQ(blame(places).text, "rank 1 gave up waiting for rank 2");
  places[1]->late = 0;
  EXPECT_EQ(blame(places).rank, -1) << "for this one itself";
}

TEST(JoiningPlace, SurvivesTheStore) {
  JoiningPlace place = at(4, 71, "boot id/host");
  place.what = "connecting over gloo";
  place.gave_up = true;
  place.late = 3;
  const auto back = decode_joining_place(encode(place));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->step, 4);
  EXPECT_EQ(back->pid, 71);
  EXPECT_EQ(back->host, "boot id/host");
  EXPECT_EQ(back->what, "connecting over gloo");
  EXPECT_TRUE(back->gave_up);
  EXPECT_EQ(back->late, 3);
  EXPECT_FALSE(decode_joining_place(""));
  EXPECT_FALSE(decode_joining_place("no numbers\nhost\n"));
}

class JoiningRank {
 public:
  JoiningRank(std::shared_ptr<Store> store, int rank)
      : board(std::make_shared<trace::CallBoard>(trace::CallBoard::create(1))),
        joining(board, 0, nullptr) {
    joining.meet_in(std::move(store), rank, 3, -1);
  }
  // The error that init() throws when its wait ends with `error`, and the rank that it says it
  // waited for.
  template <typename Error>
  std::string fail_with(const Error& error, int late) {
    std::string text = "nothing thrown";
    try {
      try {
        throw error;
      } catch (...) {
        joining.fail();
      }
    } catch (const LateRank& e) {
      EXPECT_EQ(e.rank(), late);
      text = e.what();
    } catch (const PeerLost& e) {
      EXPECT_EQ(e.rank(), late);
      text = e.what();
    } catch (const std::exception& e) {
      text = e.what();
    }
    return text;
  }

  std::shared_ptr<trace::CallBoard> board;
  Joining joining;
};

TEST(Joining, SurvivorsNameWhoIsLateAndNotEachOther) {
  const auto store = std::make_shared<HashStore>();
  JoiningRank zero(store, 0), one(store, 1), two(store, 2);
  for (JoiningRank* rank : {&zero, &one, &two}) rank->joining.step("reaching the store");
  for (JoiningRank* rank : {&zero, &two}) rank->joining.step("connecting over x");
  EXPECT_EQ(zero.board->read(0).step, "connecting over x");
  EXPECT_EQ(zero.fail_with(Timeout("x waited"), 1),
            "init(): rank 1 (pid " + std::to_string(::getpid()) +
                ") came no further than reaching the store; on rank 0, while connecting over x: x "
                "waited");
  EXPECT_TRUE(zero.board->read(0).gave_up);
  EXPECT_EQ(zero.board->read(0).late, 1);
  const std::string text = two.fail_with(PeerLost("rank 0 is gone", 0), 1);
  EXPECT_EQ(text.find("init(): rank 1 (pid "), 0u) << text;
  EXPECT_EQ(two.board->read(0).late, 1);
  EXPECT_EQ(one.board->read(0).gave_up, false);
}

TEST(Joining, OtherErrorsStayAsTheyAre) {
  JoiningRank zero(std::make_shared<HashStore>(), 0);
  zero.joining.step("reaching the store");
  EXPECT_EQ(zero.fail_with(InvalidArgument("a wrong option"), -1), "a wrong option");
  EXPECT_FALSE(zero.board->read(0).gave_up);
}

TEST(Joining, IsThroughWhenItIs) {
  JoiningRank zero(std::make_shared<HashStore>(), 0);
  zero.joining.step("reaching the store");
  zero.joining.done();
  EXPECT_EQ(zero.board->read(0).step, "");
}

}  // namespace
}  // namespace lockstep::inline v0::joining_test
