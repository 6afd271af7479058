// A message owns its references until it is acknowledged.
#include "lockstep/rpc/internal/message_references.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/agent.h"
#include "lockstep/rpc/internal/call_table.h"
#include "lockstep/rpc/internal/core.h"
#include "lockstep/rpc/internal/frame.h"
#include "lockstep/rpc/internal/notice.h"
#include "lockstep/rpc/rpc_test_support.h"

namespace lockstep::inline v0::rpc::internal {
namespace message_references_test {

// A link that keeps the bodies that are sent over it.
class KeptLink final : public Link {
 public:
  const Peer& peer() const override { return peer_; }
  bool send(const MessageHead& head, std::string_view body, std::string_view, const Tensors&,
            When) override {
    EXPECT_EQ(head.kind, MessageKind::kNotice);
    bodies.emplace_back(body);
    return true;
  }
  void check(size_t, const Tensors&) const override {}
  size_t queued_bytes() const override { return 0; }
  bool wait_for_room(Deadline) override { return true; }
  void fetch(Incoming&) override {}
  void drop(uint64_t) noexcept override {}
  bool receive_until(const std::function<bool()>&, Deadline) override { return false; }
  void close(const std::string&) override {}

  std::vector<std::string> bodies;

 private:
  Peer peer_{"peer", 7, 1, "host"};
};

ReferencePtr reference(uint64_t number) {
  return std::make_shared<Reference>(std::weak_ptr<References>(), Peer{"owner", 1, 1, "host"},
                                     ObjectId{1, number});
}

TEST(MessageReferences, AreKeptUntilTheMessageIsAcknowledged) {
  KeptLink one, other;
  SentReferences sent;
  std::vector<std::weak_ptr<Reference>> seen;
  const auto keep = [&](MessageId message, uint64_t number) {
    ReferencePtr kept = reference(number);
    seen.push_back(kept);
    sent.keep(message, {std::move(kept)});
  };
  keep({&one, 1, false}, 1);
  keep({&one, 1, true}, 2);  // this process's answer to the call that the other end numbers 1
  keep({&one, 2, false}, 3);
  keep({&other, 1, false}, 4);
  sent.release({&one, 3, false});  // nothing
  sent.release({&one, 1, true});
  const auto alive = [&] {
    std::string all;
    for (const auto& weak : seen) all += weak.expired() ? '-' : '+';
    return all;
  };
  EXPECT_EQ(alive(), "+-++");
  sent.lost(one);
  EXPECT_EQ(alive(), "---+");
  EXPECT_EQ(sent.messages(), 1U);
}

// A peer calls twice with one number. The object that ends then may call this process.
TEST(MessageReferences, AreReplacedWithoutTheLock) {
  KeptLink link;
  SentReferences sent;
  size_t seen = 0;
  const auto ends = [&](Reference* reference) {
    seen = sent.messages();
    delete reference;
  };
  ReferencePtr first(new Reference({}, Peer{"owner", 1, 1, "host"}, ObjectId{1, 1}), ends);
  std::vector<ReferencePtr> references;
  references.push_back(std::move(first));
  sent.keep({&link, 7, true}, std::move(references));
  sent.keep({&link, 7, true}, {reference(2)});
  EXPECT_EQ(seen, 1U);
}

// An answer over another link than the call's leaves the call where it is.
TEST(CallTable, AnAnswerComesOverTheLinkOfItsCall) {
  const auto link = std::make_shared<KeptLink>();
  const KeptLink other;
  const auto call = std::make_shared<TypedCall<void>>();
  call->link = link;
  call->ends = Deadline::seconds(60);
  CallTable table;
  table.insert(call);
  EXPECT_EQ(table.take(call->number, &other), nullptr);
  EXPECT_EQ(table.take(call->number + 1, link.get()), nullptr);
  EXPECT_EQ(table.take(call->number, link.get()), call);
}

TEST(MessageReferences, AreAcknowledgedOnceByTheLastThatNeedsTheMessage) {
  const auto agent = std::make_shared<int>(0);
  const auto link = std::make_shared<KeptLink>();
  Incoming message;
  message.head = {MessageKind::kResponse, 5, nullptr, false};
  EXPECT_EQ(receipt_of(agent, link, message), nullptr);
  message.head.references = true;
  std::shared_ptr<Receipt> registering;
  {
    Reader reader("", {}, nullptr, {}, receipt_of(agent, link, message));
    registering = reader.receipt();
    reader.end();
    EXPECT_EQ(reader.receipt(), nullptr) << "what has been read holds nothing";
  }
  EXPECT_TRUE(link->bodies.empty()) << "a reference is not registered yet";
  registering.reset();
  ASSERT_EQ(link->bodies.size(), 1U);
  Reader notice(link->bodies[0], {});
  EXPECT_EQ(notice.byte(), static_cast<uint8_t>(Notice::kAcknowledged));
  EXPECT_EQ(read_acknowledgement(*link, notice), (MessageId{link.get(), 5, true}));
  // A message that is dropped unread.
  message.head = {MessageKind::kRequest, 6, nullptr, true};
  receipt_of(agent, link, message).reset();
  EXPECT_EQ(link->bodies.size(), 2U);
}

TEST(MessageReferences, NothingIsSentForAnAgentThatHasEnded) {
  auto agent = std::make_shared<int>(0);
  const auto link = std::make_shared<KeptLink>();
  Incoming message;
  message.head = {MessageKind::kRequest, 1, nullptr, true};
  auto receipt = receipt_of(agent, link, message);
  agent.reset();
  receipt.reset();
  EXPECT_TRUE(link->bodies.empty());
}

TEST(MessageReferences, AMessageThatKeepsNoneHasNone) {
  Town town;
  Agent a = town.agent("a", {});
  Writer writer(&a.core()->references());
  Codec<RRef<int>>::write(writer, a.own(std::make_shared<int>(1)));
  EXPECT_EQ(writer.references().size(), 1U);
  Reader reader(writer.body(), {}, &a.core()->references());
  EXPECT_THAT(message_of([&] { Codec<RRef<int>>::read(reader); }),
              testing::HasSubstr("does not keep"));
  writer.clear(nullptr);
  EXPECT_EQ(a.kept_objects(), 0U) << "the writer has let go of it";
  // Only calls and their answers may have references.
  FrameHead head;
  head.call = 1;
  head.references = 1;
  const auto read = [&] { read_head(reinterpret_cast<const char*>(&head)); };
  EXPECT_NO_THROW(read());
  head.kind = MessageKind::kNotice;
  EXPECT_THROW(read(), BadFrame);
  head.kind = MessageKind::kRequest;
  head.references = 2;
  EXPECT_THROW(read(), BadFrame);
}

}  // namespace message_references_test
}  // namespace lockstep::inline v0::rpc::internal
