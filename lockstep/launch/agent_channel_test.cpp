#include "lockstep/launch/agent_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/wire/listener.h"

namespace lockstep::inline v0::launch {
namespace agent_channel_test {

class AgentChannelTest : public testing::Test {
 protected:
  AgentChannel accept() {
    while (true) {
      if (auto connection = listener_.next()) return AgentChannel(std::move(connection->fd));
      wait_ready(listener_.fd(), POLLIN, Deadline::seconds(60), "an agent");
    }
  }
  // Waits until a message has arrived.
  static std::vector<AgentMessage> receive(AgentChannel& channel) {
    while (true) {
      wait_ready(channel.fd(), POLLIN, Deadline::seconds(5), "a message");
      auto messages = channel.pump();
      if (!messages.empty()) return messages;
    }
  }

  const Secret secret_ = Secret::generate();
  wire::Listener listener_{
      listen_tcp({"127.0.0.1", 0}), secret_, {.where = "test", .purpose = AgentChannel::kPurpose}};
  const HostPort address_ = local_address(listener_.door());
};

TEST_F(AgentChannelTest, MessagesOfAnyLengthGoBothWays) {
  auto connecting = std::async(std::launch::async, [&] {
    return AgentChannel::connect(address_, secret_, Deadline::seconds(5));
  });
  AgentChannel server = accept();
  AgentChannel client = connecting.get();
  EXPECT_EQ(client.peer().to_string(), address_.to_string());
  EXPECT_EQ(client.local().to_string(), server.peer().to_string());

  AgentMessage message;
  message.kind = AgentMessage::Kind::kOver;
  message.text.assign(300'000, 'x');
  client.send(message);
  auto heard = std::async(std::launch::async, [&] { return receive(server); });
  while (!client.sent_all()) client.pump();
  EXPECT_EQ(heard.get().at(0).text, message.text);
  message.text = "short";
  server.send(message);
  EXPECT_EQ(receive(client).at(0).text, "short");

  // A message sent before the end is still received.
  server.send(message);
  server.close();
  EXPECT_EQ(receive(client).size(), 1u);
  EXPECT_THROW(receive(client), PeerLost);
}

}  // namespace agent_channel_test
}  // namespace lockstep::inline v0::launch
