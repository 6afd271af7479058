#include "lockstep/rpc/rref.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/rpc/agent.h"
#include "lockstep/rpc/internal/core.h"
#include "lockstep/rpc/internal/directory.h"
#include "lockstep/rpc/rpc_test_support.h"

namespace lockstep::inline v0::rpc {
namespace {

struct Counter {
  explicit Counter(int start) : value(start) {}
  int add(int x) { return value += x; }
  int value;
};

Registry rref_functions() {
  Registry registry;
  registry.add("make", [](int start) { return std::make_shared<Counter>(start); });
  registry.add("make_late", [](int start) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return Counter(start);
  });
  registry.add("make_fails", [](int) -> std::shared_ptr<Counter> { throw DataError("cannot"); });
  registry.add("add", &Counter::add);
  registry.add("late_value", [](const Counter& counter) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return counter.value;
  });
  registry.add("late",
               [](const RRef<Counter>& counter) { return counter.rpc_sync<int>("late_value"); });
  registry.add("ones_late", [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return at::ones({2});
  });
  registry.add("value", [](const Counter& counter) { return counter.value; });
  registry.add("ones", [](int64_t n) { return at::ones({n}); });
  registry.add("sum", [](const RRef<at::Tensor>& t) { return t.to_here().sum().item<double>(); });
  registry.add("pass", [](RRef<Counter> counter, const std::string& to, int x) {
    return Agent::current().rpc_sync<int>(to, "use", counter, x);
  });
  registry.add("use", [](RRef<Counter> counter, int x) { return counter.rpc_sync<int>("add", x); });
  registry.add("keep", [kept = std::make_shared<std::vector<RRef<Counter>>>()](
                           RRef<Counter> counter) { kept->push_back(counter); });
  registry.add("give", [](RRef<Counter> counter) { return counter; });
  return registry;
}

// Objects are freed within a while, because releases are sent separately.
size_t kept_within(const Agent& agent, size_t wanted) {
  for (int i = 0; i < 300 && agent.kept_objects() != wanted; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return agent.kept_objects();
}

class RRefTest : public ::testing::Test {
 protected:
  Town town_;
  Agent a_ = town_.agent("a", rref_functions()), b_ = town_.agent("b", rref_functions()),
        c_ = town_.agent("c", rref_functions());
};

TEST_F(RRefTest, ObjectsStayWithTheirOwner) {
  {
    auto counter = a_.remote<Counter>("b", "make", 5);
    EXPECT_EQ(counter.owner(), "b");
    EXPECT_FALSE(counter.is_owner());
    EXPECT_EQ(counter.rpc_sync<int>("add", 2), 7);
    EXPECT_EQ(counter.rpc_sync<int>("value"), 7);
    EXPECT_EQ(a_.remote<Counter>("b", "make_late", 1).rpc_sync<int>("value"), 1)
        << "a call waits for its object";
    EXPECT_THAT(message_of([&] { counter.local_value(); }), ::testing::HasSubstr("lives in 'b'"));
    EXPECT_TRUE(a_.remote<at::Tensor>("b", "ones", 3).to_here().equal(at::ones({3})));
    EXPECT_EQ(a_.held_references(), 1u);
  }
  EXPECT_EQ(kept_within(b_, 0), 0u);
  EXPECT_EQ(a_.held_references(), 0u);
}

TEST_F(RRefTest, WhatMakingThrewShowsWhenItIsUsed) {
  auto bad = a_.remote<Counter>("b", "make_fails", 1);
  EXPECT_THAT(message_of([&] { bad.wait(); }),
              ::testing::AllOf(::testing::HasSubstr("DataError"), ::testing::HasSubstr("cannot")));
  EXPECT_THAT(message_of([&] { bad.rpc_sync<int>("value"); }), ::testing::HasSubstr("cannot"));
  EXPECT_THAT(message_of([&] { a_.remote<Counter>("b", "not_there", 1).wait(); }),
              ::testing::HasSubstr("not registered"));
  EXPECT_THROW(a_.rpc_sync<int>("b", "value", a_.remote<at::Tensor>("b", "ones", 3)), RemoteError);
  EXPECT_THAT(message_of([&] { a_.rpc_sync("b", "make", 1); }),
              ::testing::HasSubstr("called as (int) -> nothing"));
}

// A peer that knows the job's secret names another process as the owner of the next object.
TEST_F(RRefTest, AnOwnerThatAPeerHasMadeUpIsNotTakenOver) {
  const auto core = a_.core();
  const internal::ObjectId last = a_.own(std::make_shared<Counter>(1)).reference()->id;
  Writer forged(&core->references());
  forged.byte(1);
  forged.text("made up");
  forged.word(core->self().incarnation);
  forged.word(1);
  forged.text("host");
  internal::ObjectId{last.maker, last.number + 1}.write(forged);
  Reader reader(forged.body(), {}, &core->references(), {},
                std::make_shared<internal::Receipt>(std::weak_ptr<void>(), nullptr, 1, false));
  const internal::ReferencePtr kept = core->references().read_reference(reader);
  EXPECT_EQ(kept->owner.name, "a");
  RRef<Counter> counter = a_.own(std::make_shared<Counter>(5));
  EXPECT_EQ(counter.owner(), "a");
  EXPECT_EQ(counter.rpc_sync<int>("value"), 5);
}

// A call is cancelled before it has begun, or refused: the references in it are not read.
TEST_F(RRefTest, ARequestThatIsDroppedUnreadKeepsNothing) {
  std::promise<void> in, go;
  Registry registry = rref_functions();
  registry.add("block", [&] {
    in.set_value();
    go.get_future().wait();
  });
  registry.add("read", [] {}, {.quick = true});  // on the thread that reads
  const Agent d = town_.agent("d", std::move(registry), {.workers = 1});
  const auto fresh = [&] { return a_.own(std::make_shared<Counter>(1)); };
  const auto block = a_.rpc_async("d", "block");
  in.get_future().wait();
  a_.rpc_async("d", "keep", fresh()).cancel();
  a_.rpc_sync("d", "read");  // d knows that it was cancelled
  go.set_value();
  block.get();
  EXPECT_EQ(kept_within(a_, 0), 0u) << "a call that was cancelled";
  EXPECT_THROW(a_.rpc_sync("d", "not_there", fresh()), RemoteError);
  EXPECT_THROW(a_.rpc_sync("d", "keep", fresh(), 1), RemoteError);
  EXPECT_EQ(kept_within(a_, 0), 0u) << "calls that were refused";
  EXPECT_EQ(a_.core()->sent_references().messages(), 0u);
}

// An answer that has crossed with its call's end.
TEST_F(RRefTest, AnAnswerThatIsDroppedUnreadKeepsNothing) {
  std::promise<void> in, go;
  Registry registry;
  registry.add("make_own",
               [&] {
                 in.set_value();
                 go.get_future().wait();
                 return Agent::current().own(std::make_shared<Counter>(1));
               },
               {.quick = true});  // while it runs, its cancellation is not read
  registry.add("nothing", [] {});
  const Agent d = town_.agent("d", std::move(registry));
  const auto answer = a_.rpc_async<RRef<Counter>>("d", "make_own");
  in.get_future().wait();
  answer.cancel();
  const auto behind = a_.rpc_async("d", "nothing");
  go.set_value();
  behind.get();
  EXPECT_EQ(kept_within(d, 0), 0u);
  EXPECT_EQ(d.core()->sent_references().messages(), 0u);
}

TEST_F(RRefTest, PassedOnAndGivenBack) {
  {
    auto counter = a_.remote<Counter>("b", "make", 0);
    EXPECT_EQ(a_.rpc_sync<int>("c", "use", counter, 3), 3);        // a -> c, owned by b
    EXPECT_EQ(a_.rpc_sync<int>("c", "pass", counter, "b", 4), 7);  // a -> c -> b, its owner
    EXPECT_EQ(a_.rpc_sync<RRef<Counter>>("c", "give", counter).rpc_sync<int>("value"), 7);
    EXPECT_EQ(a_.rpc_sync<double>("c", "sum", a_.own(std::make_shared<at::Tensor>(at::ones({4})))),
              4);
    a_.rpc_sync("c", "keep", counter);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(b_.kept_objects(), 1u) << "c has it still";
  EXPECT_EQ(kept_within(a_, 0), 0u);
  c_.stop();
  EXPECT_EQ(kept_within(b_, 0), 0u) << "c is gone, and what it had with it";
}

TEST_F(RRefTest, CallsThroughAReferenceHaveItsOptions) {
  const auto counter = a_.remote<Counter>("b", "make", 0);
  const auto soon = counter.with({.timeout = std::chrono::milliseconds(100)});
  EXPECT_THROW(soon.rpc_sync<int>("late_value"), Timeout);
  EXPECT_EQ(counter.rpc_sync<int>("late_value"), 0) << "the other handle has its own";
  EXPECT_THROW(soon.rpc_async<int>("late_value").get(), Timeout);
  EXPECT_EQ(a_.rpc_sync<int>("c", "late", soon), 0) << "they do not travel";
  // A value that its maker is still computing.
  const auto late = a_.remote<at::Tensor>("b", "ones_late");
  EXPECT_THROW(late.with({.timeout = std::chrono::milliseconds(50)}).wait(), Timeout);
  EXPECT_THROW(late.with({.timeout = std::chrono::milliseconds(50)}).to_here(), Timeout);
  EXPECT_TRUE(late.to_here().equal(at::ones({2})));
  // One after another, in the order in which they were made.
  const auto in_order = counter.with({.order = 7});
  std::vector<Future<int>> sums;
  for (int i = 0; i < 100; ++i) sums.push_back(in_order.rpc_async<int>("add", 1));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sums[static_cast<size_t>(i)].get(), 1 + i);
}

TEST_F(RRefTest, ADeadOwnerIsNamed) {
  auto counter = a_.remote<Counter>("b", "make", 0);
  counter.wait();
  b_.stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Agent again = town_.agent("b", rref_functions());
  EXPECT_THAT(message_of([&] { counter.wait(); }),
              ::testing::AllOf(::testing::HasSubstr("owner"), ::testing::HasSubstr("'b'"),
                               ::testing::HasSubstr("gone")));
  EXPECT_THAT(message_of([&] { counter.rpc_sync<int>("value"); }), ::testing::HasSubstr("'b'"));
}

// Housekeeping for references whose owners have ended occupies no thread that serves calls, however
// many there are.
TEST_F(RRefTest, DeadOwnersTakeNoWorker) {
  Registry registry = rref_functions();
  registry.add("nothing", [] {});
  const Agent d =
      town_.agent("d", std::move(registry), {.workers = 1, .lease = std::chrono::milliseconds(60)});
  std::vector<RRef<Counter>> kept;
  for (int i = 0; i < 8; ++i) {
    const std::string name = "owner" + std::to_string(i);
    const Agent owner = town_.agent(name, rref_functions());
    for (int k = 0; k < 2; ++k) {
      kept.push_back(d.remote<Counter>(name, "make", 0));
      kept.back().wait();
    }
  }
  for (int i = 0; i < 50; ++i) {  // more than a lease
    a_.to("d", {.timeout = std::chrono::seconds(10)}).rpc_sync("nothing");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (i % 5 == 0) kept.pop_back();  // and returns it
  }
  EXPECT_EQ(d.held_references(), kept.size());
}

// A reference may name a process that does not answer: its receiver serves others meanwhile.
TEST_F(RRefTest, ASilentOwnerOfWhatIsPassedOnTakesNoWorker) {
  internal::Entry silent;
  silent.peer = {"silent", 4711, a_.core()->self().pid, a_.core()->self().host};
  silent.host_identity = host_identity();
  const UniqueFd listener = internal::listen_local(silent.local);  // nothing accepts
  town_.store()->set(internal::entry_key("silent"), silent.encode());
  std::vector<RRef<Counter>> kept;  // not in d's registry: a reference holds its agent
  Registry registry = rref_functions();
  registry.add("nothing", [] {});
  registry.add("keep_here", [&kept](RRef<Counter> counter) { kept.push_back(counter); });
  Agent d = town_.agent("d", std::move(registry), {.workers = 1});
  for (uint64_t i = 0; i < 3; ++i) {
    const RRef<Counter> passed(
        std::make_shared<internal::Reference>(a_.core()->references().self(), silent.peer,
                                              internal::ObjectId{silent.peer.incarnation, i}));
    a_.to("d", {.timeout = std::chrono::seconds(10)}).rpc_sync("keep_here", passed);
    a_.to("d", {.timeout = std::chrono::seconds(10)}).rpc_sync("nothing");
  }
  // Another owner is nevertheless reached.
  EXPECT_EQ(a_.rpc_sync<int>("d", "use", a_.remote<Counter>("b", "make", 3), 4), 7);
  // An agent that stops before it has reached an owner still releases the references.
  const std::weak_ptr<internal::Reference> last = kept.back().reference();
  kept.clear();
  EXPECT_FALSE(last.expired()) << "it is still to be told";
  d.stop();
  EXPECT_TRUE(last.expired());
}

// A reference that was released while there was no link with the owner is reported as soon as there
// is one again.
TEST_F(RRefTest, WhatIsGivenBackWithoutALinkIsToldLater) {
  Agent d = town_.agent("d", rref_functions(), {.lease = std::chrono::seconds(1)});
  auto gone = d.remote<Counter>("b", "make", 0), stays = d.remote<Counter>("b", "make", 5);
  gone.wait();
  stays.wait();
  d.core()->transport().living_link_to("b")->close("a test");
  gone = {};
  EXPECT_EQ(d.to("b").remote<Counter>("make", 6).rpc_sync<int>("value"), 6);
  EXPECT_EQ(kept_within(b_, 1), 1u) << "one was given back before the link was lost, one after";
  EXPECT_EQ(stays.rpc_sync<int>("value"), 5);
}

// The process that passes a reference on has another path to the owner than its receiver.
TEST_F(RRefTest, AReferenceMayComeBeforeItsObject) {
  for (const bool fetched : {true, false}) {
    const internal::ObjectId next{a_.core()->self().incarnation,
                                  a_.core()->references().next_number() + 1};
    const RRef<Counter> early(std::make_shared<internal::Reference>(c_.core()->references().self(),
                                                                    b_.core()->self(), next));
    RRef<Counter> counter;
    const auto late = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      counter = a_.remote<Counter>("b", "make", 7);
    });
    if (fetched) early.wait();
    EXPECT_EQ(early.rpc_sync<int>("value"), 7);
    late.wait();
  }
}

// A callback that waits for an object that no user counts any more is told so.
TEST(ObjectTable, WhoWaitsIsTold) {
  internal::ObjectTable table;
  const internal::ObjectId made{1, 1}, dropped{1, 2}, never{1, 3}, late{1, 4};
  std::vector<std::string> said;
  const auto ready = [&](const std::shared_ptr<internal::Object>&, std::exception_ptr error) {
    said.push_back(error ? message_of([&] { std::rethrow_exception(error); }) : "there");
  };
  const auto known = [&](bool is) { said.push_back(is ? "known" : "unknown"); };
  table.expect(made, 7);
  table.expect(dropped, 7);
  EXPECT_FALSE(table.when_made(never, ready));
  EXPECT_TRUE(table.when_made(made, ready));
  EXPECT_TRUE(table.when_made(dropped, ready));
  table.made(made, nullptr, nullptr);
  table.release(dropped, 7, 1);
  EXPECT_EQ(table.when_known(made, known), 0U);
  const uint64_t gives_up = table.when_known(never, known), waits = table.when_known(late, known);
  EXPECT_THAT(
      said, ::testing::ElementsAre("there", ::testing::HasSubstr("no process counts it"), "known"));
  said.clear();
  table.give_up(gives_up);
  table.expect(late, 7);
  table.give_up(waits);  // it waits no longer
  EXPECT_THAT(said, ::testing::ElementsAre("unknown", "known"));
  said.clear();
  table.when_known(never, known);
  EXPECT_TRUE(table.when_made(late, ready));
  table.close();
  table.when_known(never, known);
  EXPECT_THAT(said,
              ::testing::ElementsAre("unknown", ::testing::HasSubstr("has ended"), "unknown"));
}

TEST(RRef, ASilentUserIsForgottenAfterItsLease) {
  const Town town;
  Agent b = town.agent("b", rref_functions(), {.lease = std::chrono::milliseconds(300)});
  Agent a = town.agent("a", rref_functions(),
                       {.lease = std::chrono::hours(1)});  // it renews its lease too rarely
  auto counter = a.remote<Counter>("b", "make", 0);
  counter.wait();
  EXPECT_EQ(b.kept_objects(), 1u);
  EXPECT_EQ(kept_within(b, 0), 0u);
  EXPECT_THAT(message_of([&] { counter.wait(); }), ::testing::HasSubstr("lease"));
  Agent c = town.agent("c", rref_functions(), {.lease = std::chrono::milliseconds(300)});
  auto other = c.remote<Counter>("b", "make", 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(900));
  EXPECT_EQ(other.rpc_sync<int>("value"), 0) << "who says that it lives keeps it";
}

}  // namespace
}  // namespace lockstep::inline v0::rpc
