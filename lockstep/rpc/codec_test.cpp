#include "lockstep/rpc/codec.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::rpc {
namespace {

struct Inner {
  int32_t a = 0;
  std::vector<Inner> more;
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("a", a);
    visit("more", more);
  }
};
struct Outer {
  std::string name;
  std::optional<double> value;
  std::map<std::string, Inner> parts;
  at::Tensor tensor;
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("name", name);
    visit("value", value);
    visit("parts", parts);
    visit("tensor", tensor);
  }
};

template <typename T>
std::string words() {
  TypeText text;
  Codec<T>::describe(text);
  return text.str();
}

template <typename T>
T there_and_back(const T& value) {
  Writer writer;
  Codec<T>::write(writer, value);
  Reader reader(writer.body(), writer.tensors());
  T result = Codec<T>::read(reader);
  reader.end();
  return result;
}

TEST(Codec, TypesInWords) {
  EXPECT_EQ((words<std::tuple<at::Tensor, int, uint8_t, float, bool>>()),
            "(tensor, int, int, float, bool)");
  EXPECT_EQ((words<std::map<std::string, std::vector<std::optional<double>>>>()),
            "{string: [float?]}");
  EXPECT_THAT(
      words<Inner>(),
      ::testing::EndsWith("Inner{a: int, more: [lockstep::rpc::(anonymous namespace)::Inner]}"));
}

TEST(Codec, ValuesComeBackAsTheyWere) {
  EXPECT_EQ(there_and_back(std::string("a\0b", 3)), std::string("a\0b", 3));
  EXPECT_EQ(there_and_back(int64_t{INT64_MIN}), INT64_MIN);
  EXPECT_EQ(there_and_back(-1.5f), -1.5f);
  EXPECT_TRUE(std::isnan(there_and_back(std::nan(""))));
  EXPECT_EQ(
      (there_and_back(std::tuple<bool, std::array<int, 2>, std::pair<int, std::string>>{
          true, {1, 2}, {3, "x"}})),
      (std::tuple<bool, std::array<int, 2>, std::pair<int, std::string>>{true, {1, 2}, {3, "x"}}));
  Outer outer{"n", 2.5, {{"k", {7, {{8, {}}, {9, {}}}}}}, at::arange(3)};
  outer = there_and_back(outer);
  EXPECT_EQ(outer.name, "n");
  EXPECT_EQ(outer.value, 2.5);
  EXPECT_EQ(outer.parts.at("k").more.at(1).a, 9);
  EXPECT_TRUE(outer.tensor.equal(at::arange(3)));
}

TEST(Codec, TensorsOfEveryForm) {
  EXPECT_FALSE(there_and_back(at::Tensor()).defined());
  EXPECT_TRUE(there_and_back(at::arange(6).view({2, 3}).t()).equal(at::arange(6).view({2, 3}).t()));
  const at::Tensor sparse = at::eye(4).to_sparse();
  const at::Tensor back = there_and_back(sparse);
  EXPECT_TRUE(back.is_sparse());
  EXPECT_TRUE(back.to_dense().equal(at::eye(4)));
  EXPECT_THROW(there_and_back(at::empty({1}, at::TensorOptions().device(at::kMeta))),
               InvalidArgument);
}

// No wait happens while its tensors move on to a device: the received ones are checked. Tensors
// without contents stand for the device's.
TEST(Codec, ASparseTensorIsCheckedInHostMemory) {
  Writer writer;
  writer.tensor(at::eye(4).to_sparse());
  writer.tensor(at::arange(3));
  const internal::Tensors came = writer.tensors();
  internal::Tensors moved;
  for (const at::Tensor& tensor : came) moved.push_back(tensor.to(at::kMeta));
  Reader reader(writer.body(), moved, nullptr, came);
  const at::Tensor back = reader.tensor();
  EXPECT_TRUE(back.is_sparse() && back.is_coalesced());
  EXPECT_EQ(back.device(), at::Device(at::kMeta));
  EXPECT_EQ(back._indices().sizes(), at::IntArrayRef({2, 4}));
  EXPECT_EQ(reader.tensor().device(), at::Device(at::kMeta));
  reader.end();

  internal::Tensors wrong = came;
  wrong[0] = came[0] + 9;
  Reader outside(writer.body(), moved, nullptr, wrong);
  EXPECT_THROW(outside.tensor(), DataError);
  moved[1] = came[1];
  Reader apart(writer.body(), moved, nullptr, came);
  EXPECT_THROW(apart.tensor(), DataError);
}

TEST(Codec, WhatDoesNotFitIsDataError) {
  const auto read = [](const auto& value, auto wanted) {
    Writer writer;
    Codec<std::decay_t<decltype(value)>>::write(writer, value);
    Reader reader(writer.body(), writer.tensors());
    auto result = Codec<decltype(wanted)>::read(reader);
    reader.end();
    return result;
  };
  EXPECT_THROW(read(300, uint8_t{}), DataError);
  EXPECT_THROW(read(-1, uint32_t{}), DataError);
  EXPECT_THROW(read(1, std::string{}), DataError);  // too short, or too long
  EXPECT_THROW(read(std::string("x"), int64_t{}), DataError);
  EXPECT_THROW(read(1, at::Tensor{}), DataError);
  EXPECT_THROW(read(true, std::vector<int64_t>{}), DataError);  // claims an element
  Reader endless("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", {});
  EXPECT_THROW(endless.length(), DataError);
  std::string nested(1000, '\x01');
  nested = "";
  for (int i = 0; i < 500; ++i)
    nested += std::string(1, '\x01') + std::string(8, '\0') + std::string(1, '\x01');
  Reader deep(nested, {});
  EXPECT_THROW(Codec<Inner>::read(deep), DataError);
  const at::Tensor indices = at::full({1, 1}, 9, at::kLong);
  Writer writer;
  writer.byte(2);
  writer.length(1);
  writer.word(4);
  writer.byte(0);
  Reader outside(writer.body(), {indices, at::ones({1})});
  EXPECT_THROW(outside.tensor(), DataError);
}

}  // namespace
}  // namespace lockstep::inline v0::rpc
