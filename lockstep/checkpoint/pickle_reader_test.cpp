#include "lockstep/checkpoint/pickle_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/checkpoint/internal/test_zip.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::pickle_reader_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Use = PickleGlobal::Use;

constexpr PickleGlobal kAllowed[] = {
    {"collections OrderedDict", Use::kMakesDict}, {"m call", Use::kCall}, {"m name"}};
const std::string kProto = "\x80\x02";

Pickle read(const std::string& bytes) {
  return read_pickle(bytes, kAllowed, "f.pt");
}
std::string error_of(const std::string& bytes) {
  return message_of<CheckpointError>([&] { read(bytes); });
}

TEST(PickleReader, ReadsData) {
  // CPython's pickle.dumps of {"a": [1, -2, 2**40, 2**70], "b": (None, True, 0.5), "c": {}}
  const std::string bytes(
      "\x80\x02}q\x00(X\x01\x00\x00\x00\x61q\x01]q\x02(K\x01J\xfe\xff\xff\xff\x8a\x06\x00\x00\x00"
      "\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@eX\x01\x00\x00\x00\x62q\x03N\x88G?\xe0"
      "\x00\x00\x00\x00\x00\x00\x87q\x04X\x01\x00\x00\x00\x63q\x05}q\x06u.",
      80);
  const Pickle pickle = read(bytes);
  const PickleValue& root = pickle[pickle.root];
  const PickleValue* a = pickle.find(root, "a");
  ASSERT_NE(a, nullptr);
  ASSERT_EQ(a->items.size(), 4u);
  EXPECT_EQ(pickle[a->items[0]].integer, 1);
  EXPECT_EQ(pickle[a->items[1]].integer, -2);
  EXPECT_EQ(pickle[a->items[2]].integer, int64_t{1} << 40);
  EXPECT_EQ(pickle[a->items[3]].kind, PickleKind::kBigInteger);
  const PickleValue* b = pickle.find(root, "b");
  ASSERT_EQ(b->items.size(), 3u);
  EXPECT_EQ(pickle[b->items[0]].kind, PickleKind::kNone);
  EXPECT_EQ(pickle[b->items[1]].integer, 1);
  EXPECT_EQ(pickle[b->items[2]].number, 0.5);
  EXPECT_EQ(pickle.find(root, "c")->kind, PickleKind::kDict);
  EXPECT_EQ(pickle.find(root, "d"), nullptr);
}

TEST(PickleReader, CallsBecomeValues) {
  const Pickle pickle = read(kProto + "cm\ncall\nK\x05\x85R.");
  const PickleValue& call = pickle[pickle.root];
  EXPECT_EQ(call.kind, PickleKind::kCall);
  EXPECT_EQ(call.text, "m call");
  EXPECT_EQ(pickle[pickle[call.items[0]].items[0]].integer, 5);
  const std::string bytes = kProto + "ccollections\nOrderedDict\n)R" + pickled("k") + "K\x01s}b.";
  const Pickle dict = read(bytes);
  EXPECT_EQ(dict.find(dict[dict.root], "k")->integer, 1);
}

TEST(PickleReader, TheLatestValueOfAKeyCounts) {
  const std::string bytes = kProto + "}" + pickled("k") + "K\x01s" + pickled("k") + "K\x02s.";
  const Pickle pickle = read(bytes);
  EXPECT_EQ(pickle.find(pickle[pickle.root], "k")->integer, 2);
}

TEST(PickleReader, WhatIsNotDataIsNamed) {
  EXPECT_THAT(
      error_of(kProto + "cposix\nsystem\n" + pickled("echo") + "\x85R."),
      AllOf(StartsWith("f.pt: holds the Python object 'posix.system'"), Not(HasSubstr("\n"))));
  EXPECT_THAT(error_of(kProto + "cm\nname\n)R."), HasSubstr("a call of 'm.name'"));
  EXPECT_THAT(error_of(kProto + "cm\ncall\n)R)R."), HasSubstr("a call of 'm.call'"));
  EXPECT_THAT(error_of(kProto + "cm\ncall\n)R}b."), HasSubstr("attributes, 'm.call'"));
  EXPECT_THAT(error_of(kProto + "cm\ncall\n)RK\x01K\x01s."), HasSubstr("filled, 'm.call'"));
  EXPECT_THAT(error_of(kProto + "ccollections\nOrderedDict\n]\x85R."), HasSubstr("with arguments"));
  // Names of an object with the same letters: "m call" is not module "" and name "m call".
  EXPECT_THAT(error_of(kProto + "c\nm call\n."), HasSubstr("'.m.call'"));
  EXPECT_THAT(error_of(kProto + "cm\ncal\x01l\n."), HasSubstr("'m.cal?l'"));
  for (const char* opcode : {"i", "o", "\x81", "\x82", "\x93", "P1\n", "F1\n", "S'a'\n", "\x8b"})
    EXPECT_THAT(error_of(kProto + "(" + opcode + "."), HasSubstr("opcode")) << opcode;
  EXPECT_THAT(error_of("\x80\x04."), HasSubstr("pickle protocol 4"));
}

TEST(PickleReader, DamagedIsOneLine) {
  const std::string good = kProto + "}q\x01(" + pickled("a") + "K\x01" + pickled("b") + "h\x01u.";
  EXPECT_NO_THROW(read(good));  // a dict that contains itself
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_THAT(error_of(good.substr(0, size)), StartsWith("f.pt: its pickle")) << size;
  for (const std::string& bad :
       {kProto + ".", kProto + "(.", kProto + "NN.", kProto + "}K\x01s.", kProto + "}(K\x01u.",
        kProto + "t.", kProto + "e.", kProto + "h\x05.", kProto + "q\x05.", kProto + "N(\x85.",
        kProto + "X\xff\xff\xff\xff.", kProto + "cno line", kProto + "\x8a\xff.", kProto + "R.",
        kProto + "b.", kProto + "Q.",
        kProto + "Nr\xff\xff\xff\xffr\xff\xff\xff\xfer\xff\xff\xff\xfd."})
    EXPECT_THAT(error_of(bad), AllOf(StartsWith("f.pt: "), Not(HasSubstr("\n"))));
}

// Small files that would take much memory or a deep stack.
TEST(PickleReader, HungryPicklesAreStopped) {
  EXPECT_THAT(error_of(kProto + std::string(1'000'000, '(')), HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of(kProto + std::string(5'000'000, 'N') + "."), HasSubstr("four million"));
  // Nested lists, one level per byte.
  std::string deep = kProto + "]";
  for (int i = 0; i < 100'000; ++i) deep += "\x85";
  EXPECT_NO_THROW(read(deep + "."));
  // A call whose long arguments are repeated again and again.
  std::string calls = kProto + "(cm\ncall\nq\x01(" + std::string(100'000, 'N') + "tq\x02";
  for (int i = 0; i < 100'000; ++i) calls += "h\x01h\x02R";
  EXPECT_NO_THROW(read(calls + "t."));
}

}  // namespace lockstep::inline v0::pickle_reader_test
