#include "lockstep/rpc/internal/receiver.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/core/memory_use.h"
#include "lockstep/rpc/internal/frame.h"
#include "lockstep/rpc/internal/send_queue.h"

namespace lockstep::inline v0::rpc::internal {
namespace receiver_test {

constexpr uint64_t kMost = uint64_t{1} << 30;

std::string frame(FrameHead head, const std::string& body, const std::string& table = "",
                  const std::string& raw = "") {
  head.body = static_cast<uint32_t>(body.size());
  head.table = static_cast<uint32_t>(table.size());
  std::string bytes(reinterpret_cast<const char*>(&head), kHeadBytes);
  return bytes + body + table + raw;
}

FrameHead request(uint64_t call, uint32_t tensors = 0) {
  FrameHead head;
  head.call = call;
  head.tensors = tensors;
  return head;
}

std::string row(at::ScalarType dtype, at::IntArrayRef sizes, uint64_t address = 0) {
  std::string table;
  append_row(table, dtype, sizes, address);
  return table;
}

struct Got {
  uint64_t call;
  std::string body;
  Tensors tensors;
};

// Acts like a socket that gives at most `piece` bytes at a time.
std::vector<Got> receive(std::string_view stream, size_t piece, uint64_t most = kMost,
                         bool* between = nullptr) {
  Receiver receiver(most, ReceiveMemory::make(size_t{1} << 24));
  std::vector<Got> all;
  while (!stream.empty()) {
    size_t came = 0;
    for (const iovec& place : receiver.places()) {
      const size_t part = std::min({place.iov_len, piece - came, stream.size()});
      std::memcpy(place.iov_base, stream.data(), part);
      stream.remove_prefix(part);
      came += part;
    }
    receiver.came(came, [&](Receiver::Message& message) {
      all.push_back({message.head.call, std::string(message.body), std::move(message.tensors)});
    });
  }
  if (between) *between = receiver.between();
  return all;
}

// Writes a tensor as a sender would.
std::string raw(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

TEST(Receiver, CutsAStreamHoweverItComes) {
  std::string stream;
  std::vector<at::Tensor> sent;
  for (uint64_t i = 1; i <= 40; ++i) {
    const std::string body((i * 37) % 300, static_cast<char>('a' + i % 26));
    if (i % 4 != 0) {
      stream += frame(request(i), body);
      continue;
    }
    const auto many = static_cast<int64_t>(i) * (i % 8 == 0 ? 5000 : 3);
    const at::Tensor a = at::arange(many, at::kInt).view({many, 1}),
                     b = at::empty({0, 7}, at::kDouble), c = at::ones({}, at::kBFloat16);
    stream += frame(request(i, 3), body,
                    row(at::kInt, a.sizes()) + row(at::kDouble, b.sizes()) + row(at::kBFloat16, {}),
                    raw(a) + raw(c));
    sent.insert(sent.end(), {a, b, c});
  }
  for (const size_t piece : {1UL, 2UL, 39UL, 40UL, 41UL, 1000UL, 65536UL, 100000000UL}) {
    bool between = false;
    const auto all = receive(stream, piece, kMost, &between);
    ASSERT_EQ(all.size(), 40U);
    EXPECT_TRUE(between);
    size_t next = 0;
    for (uint64_t i = 1; i <= 40; ++i) {
      const Got& got = all[i - 1];
      EXPECT_EQ(got.call, i);
      EXPECT_EQ(got.body, std::string((i * 37) % 300, static_cast<char>('a' + i % 26)));
      ASSERT_EQ(got.tensors.size(), i % 4 == 0 ? 3U : 0U);
      for (const at::Tensor& tensor : got.tensors) {
        const at::Tensor& expected = sent[next++];
        EXPECT_EQ(tensor.scalar_type(), expected.scalar_type());
        EXPECT_EQ(tensor.sizes(), expected.sizes());
        EXPECT_TRUE(at::equal(tensor, expected));
      }
    }
  }
}

TEST(Receiver, LargeBodiesAndTensors) {
  const std::string body(3 << 20, 'b');
  const at::Tensor large = at::randint(0, 256, {5 << 20}, at::kByte);
  const std::string stream =
      frame(request(1, 2), body, row(at::kByte, large.sizes()) + row(at::kByte, {0}), raw(large)) +
      frame(request(2), "after");
  for (const size_t piece : {999UL, 65536UL, 1UL << 30}) {
    const auto all = receive(stream, piece);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0].body, body);
    EXPECT_TRUE(at::equal(all[0].tensors[0], large));
    EXPECT_EQ(all[1].body, "after");
  }
}

TEST(Receiver, EveryDtypeTravels) {
  int travelled = 0;
  for (int8_t value = 0; value < static_cast<int8_t>(at::ScalarType::NumOptions); ++value) {
    const auto dtype = static_cast<at::ScalarType>(value);
    if (!travels(dtype)) continue;
    ++travelled;
    const std::string bytes(3 * c10::elementSize(dtype), 'x');
    const auto all = receive(frame(request(1, 1), "", row(dtype, {3}), bytes), 1000);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].tensors[0].scalar_type(), dtype);
    EXPECT_EQ(raw(all[0].tensors[0]), bytes);
  }
  EXPECT_GE(travelled, 40);
  EXPECT_FALSE(travels(at::kQInt8));
  EXPECT_FALSE(travels(at::ScalarType::Undefined));
}

// The stream does not check whether such a device exists.
TEST(Receiver, SaysWhereTensorsShallGo) {
  std::string table;
  append_row(table, at::kInt, {1}, 0, {at::kCUDA, 100});
  append_row(table, at::kInt, {1}, 0);
  const std::string stream = frame(request(1, 2), "", table, "tensors.");
  Receiver receiver(kMost, ReceiveMemory::make(size_t{1} << 24));
  const iovec place = receiver.places()[0];
  std::memcpy(place.iov_base, stream.data(), stream.size());
  int messages = 0;
  receiver.came(stream.size(), [&](Receiver::Message& message) {
    ++messages;
    EXPECT_EQ(message.places[0].device, at::Device(at::kCUDA, 100));
    EXPECT_EQ(message.places[1].device, at::Device(at::kCPU));
    EXPECT_TRUE(message.tensors[0].is_cpu());
  });
  EXPECT_EQ(messages, 1);
}

TEST(Receiver, RefusesWhatIsNoMessage) {
  const auto refused = [](const std::string& stream, uint64_t most = kMost) {
    EXPECT_THROW(receive(stream, 1000, most), BadFrame);
  };
  refused("GET / HTTP/1.1\r\nHost: somewhere, and some more\r\n");
  FrameHead head = request(1);
  head.kind = static_cast<MessageKind>(77);
  refused(frame(head, ""));
  refused(frame(request(0), ""));
  head = request(1);
  head.zeros[1] = 1;
  refused(frame(head, ""));
  head = request(1);
  head.ticket = 1;
  refused(frame(head, ""));
  head = request(1, 70000);
  refused(frame(head, "", std::string(70000 * 16, '\0')));
  // More or fewer rows than tensors.
  refused(frame(request(1, 1), "", row(at::kInt, {1}) + row(at::kInt, {1})));
  refused(frame(request(1, 2), "", row(at::kInt, {1, 2, 3, 4})));
  refused(frame(request(1, 0), "", row(at::kInt, {1})));
  // Invalid sizes, also beside a 0.
  refused(frame(request(1, 1), "", row(at::kInt, {-1})));
  refused(frame(request(1, 1), "", row(at::kInt, {int64_t{1} << 40, int64_t{1} << 40})));
  refused(frame(request(1, 1), "", row(at::kInt, {int64_t{1} << 40, 0, int64_t{1} << 40})));
  refused(frame(request(1, 1), "", row(at::kByte, {1 << 20})), (1 << 20) - 1);
  refused(frame(request(1, 2), "", row(at::kByte, {1 << 19}) + row(at::kByte, {1 << 19})),
          (1 << 20) - 1);
  std::string wrong = row(at::kInt, {1});
  wrong[0] = static_cast<char>(at::kQInt8);
  refused(frame(request(1, 1), "", wrong));
  wrong[0] = static_cast<char>(200);
  refused(frame(request(1, 1), "", wrong));
  wrong = row(at::kInt, {1});
  wrong[1] = 65;
  refused(frame(request(1, 1), "", wrong));
  // A device type that cannot compute, a CPU with a number, an invalid number.
  for (const auto& [type, device] : std::vector<std::pair<at::DeviceType, int>>{
           {at::kMeta, 0}, {static_cast<at::DeviceType>(99), 0}, {at::kCPU, 1}, {at::kCUDA, 128}}) {
    wrong = row(at::kInt, {1});
    wrong[2] = static_cast<char>(type);
    wrong[3] = static_cast<char>(device);
    refused(frame(request(1, 1), "", wrong));
  }
  // An address without a ticket, a ticket without an address, an address of an empty tensor.
  refused(frame(request(1, 1), "", row(at::kInt, {1}, 4096)));
  head = request(1, 1);
  head.ticket = 5;
  refused(frame(head, "", row(at::kInt, {1})));
  refused(frame(head, "", row(at::kInt, {0}, 4096)));
  // The length is too large, and is refused before the bytes arrive.
  head = request(1);
  std::string claim = frame(head, "");
  const uint32_t huge = kMostBody + 1;
  std::memcpy(claim.data() + offsetof(FrameHead, body), &huge, sizeof huge);
  refused(claim);
}

TEST(Receiver, ClaimsTakeNoMemory) {
  const double before = proportional_memory_bytes();
  std::vector<std::unique_ptr<Receiver>> receivers;
  for (int i = 0; i < 20; ++i) {
    receivers.push_back(std::make_unique<Receiver>(uint64_t{16} << 30, ReceiveMemory::make(0)));
    std::string claim =
        i % 2 ? frame(request(1, 1), "", row(at::kByte, {int64_t{1} << 30}), "the beginning")
              : frame(request(1), "");
    if (i % 2 == 0) {
      const auto huge = static_cast<uint32_t>(kMostBody);
      std::memcpy(claim.data() + offsetof(FrameHead, body), &huge, sizeof huge);
    }
    const iovec place = receivers.back()->places().back();
    std::memcpy(place.iov_base, claim.data(), claim.size());
    receivers.back()->came(claim.size(), [](Receiver::Message&) { FAIL(); });
    EXPECT_FALSE(receivers.back()->places().empty());
    EXPECT_FALSE(receivers.back()->between());
  }
  EXPECT_LT(proportional_memory_bytes(), before + 100e6);
}

TEST(SendQueue, WritesInOrderFromAnyPlace) {
  for (const size_t step : {1UL, 7UL, 100UL, 5000UL, 1UL << 20}) {
    SendQueue out;
    std::string expected, written;
    for (int round = 0; round < 2; ++round) {
      for (int64_t i = 0; i < 30; ++i) {
        const std::string text(static_cast<size_t>(i * 7), static_cast<char>('a' + i % 26));
        const at::Tensor tensor = at::randint(0, 256, {i * 400}, at::kByte);
        out.add(text);
        out.add(tensor, tensor.nbytes());
        expected += text + raw(tensor);
      }
      EXPECT_EQ(out.bytes(), expected.size() - written.size());
      while (!out.empty()) {
        std::array<iovec, 3> pieces;
        const size_t count = out.pieces(pieces);
        size_t n = 0;
        for (size_t i = 0; i < count && n < step; ++i) {
          const size_t part = std::min(pieces[i].iov_len, step - n);
          written.append(static_cast<const char*>(pieces[i].iov_base), part);
          n += part;
        }
        ASSERT_GT(n, 0U);
        out.written(n);
      }
    }
    EXPECT_TRUE(written == expected) << step;
  }
}

TEST(ReceiveMemory, KeepsWhatWasGivenBack) {
  constexpr int64_t kBytes = 8 << 20;
  auto memory = ReceiveMemory::make(3 * kBytes);
  at::Tensor first = memory->tensor(at::kByte, {kBytes}, kBytes);
  const void* place = first.const_data_ptr();
  EXPECT_EQ(memory->kept(), 0U);
  first.reset();
  EXPECT_EQ(memory->kept(), static_cast<size_t>(kBytes));
  at::Tensor second = memory->tensor(at::kFloat, {kBytes / 8}, kBytes / 2);
  EXPECT_EQ(second.const_data_ptr(), place);
  // A far smaller tensor does not take a large place.
  EXPECT_NE(memory->tensor(at::kByte, {kBytes / 16}, kBytes / 16).const_data_ptr(), place);
  std::vector<at::Tensor> many;
  for (int i = 0; i < 6; ++i) many.push_back(memory->tensor(at::kByte, {kBytes}, kBytes));
  many.clear();
  EXPECT_LE(memory->kept(), 3U * kBytes);
  EXPECT_GE(memory->kept(), 2U * kBytes);
  // It outlives its owner, and can grow like any other.
  at::Tensor left = memory->tensor(at::kByte, {kBytes}, kBytes);
  memory.reset();
  left.fill_(7);
  left.resize_({2 * kBytes});
  EXPECT_EQ(left[kBytes - 1].item<int>(), 7);
}

}  // namespace receiver_test
}  // namespace lockstep::inline v0::rpc::internal
