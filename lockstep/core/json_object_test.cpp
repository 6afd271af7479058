#include "lockstep/core/json_object.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::json_object_test {
namespace {

using ::testing::HasSubstr;

constexpr JsonRefusal kRefusal = refuse_as<DataError>;

TEST(JsonObject, AMemberIsTakenOrItsFallback) {
  const auto json =
      parse_json(R"({"a": {"b": "text", "n": 5e2, "x": 0.5, "on": true, "none": null}, "l": [1]})",
                 "f.json", kRefusal);
  const JsonObject root(json, "f.json", kRefusal);
  const JsonObject a = root.object("a");
  EXPECT_EQ(a.text("b"), "text");
  EXPECT_EQ(a.text("none", "other"), "other");
  EXPECT_EQ(a.whole("n", 0), 500);
  EXPECT_EQ(a.whole_or(7, "m", 0), 7);
  EXPECT_EQ(a.number("x", 0, 1), 0.5);
  EXPECT_TRUE(a.flag("on", false));
  EXPECT_FALSE(a.has("none"));
  EXPECT_EQ(root.list("l").size(), 1u);
  EXPECT_EQ(root.object_or_empty("z").whole_or(3, "n", 0), 3);
  EXPECT_EQ(a.path("b"), "f.json: a.b");
}

TEST(JsonObject, WhatDoesNotFitIsSaidInOneLine) {
  const auto json = parse_json(
      R"({"a": {"n": 2.5, "big": 18446744073709551615, "far": 1e300, "s": "line\nbreak", "l": [[]]}})",
      "f.json", kRefusal);
  const JsonObject root(json, "f.json", kRefusal);
  const JsonObject a = root.object("a");
  const auto line = [&](const auto& read) { return message_of<DataError>(read); };
  EXPECT_EQ(line([&] { a.whole("n", 1); }), "f.json: a.n is 2.5; give a whole number, 1 or more");
  EXPECT_EQ(line([&] { a.whole("n", 1, 9); }),
            "f.json: a.n is 2.5; give a whole number from 1 to 9");
  EXPECT_THAT(line([&] { a.whole("big", 0); }), HasSubstr("a.big is 18446744073709551615; give"));
  EXPECT_THAT(line([&] { a.whole("far", 0); }), HasSubstr("a.far is 1e+300; give"));
  EXPECT_EQ(line([&] { a.whole("m", 1); }),
            "f.json: a.m is missing; give a whole number, 1 or more");
  EXPECT_EQ(line([&] { a.number("s", 0, 1); }),
            R"(f.json: a.s is "line\nbreak"; give a number from 0.0 to 1.0)");
  EXPECT_EQ(line([&] { a.text("l"); }), "f.json: a.l is a list of 1; give a text");
  EXPECT_EQ(line([&] { root.object("b"); }), "f.json: b is missing; give a JSON object");
  EXPECT_EQ(line([&] { JsonObject(json.at("a").at("l"), "g.json", kRefusal); }),
            "g.json: is a list of 1; give a JSON object");
  EXPECT_LT(shown(nlohmann::json(std::string(1000, 'x'))).size(), 80u);
}

TEST(ParseJson, SaysWhereItIsNot) {
  const auto line = [](const std::string& text, JsonSyntax syntax = {}) {
    return message_of<DataError>([&] { parse_json(text, "f.json", kRefusal, syntax); });
  };
  EXPECT_EQ(line("{"), "f.json: is not JSON (at byte 2)");
  EXPECT_EQ(line("{\n\n]"), "f.json: is not JSON (at byte 4, in line 3)");
  EXPECT_EQ(line("[1e999]"),
            "f.json: the number 1e999 is out of range; give one that a double holds");
  EXPECT_EQ(line(R"({"a": {"b": 1, "b": 2}})", {.once = true}),
            R"(f.json: "b" is given twice; keep one)");
  EXPECT_EQ(parse_json("{/* so */}", "f.json", kRefusal, {.comments = true}).size(), 0u);
  EXPECT_THAT(line("{/* so */}"), HasSubstr("is not JSON"));
}

// dump() of a deep structure would recurse equally deeply.
TEST(ParseJson, DepthIsNoHarm) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  const auto json = parse_json(deep, "f.json", kRefusal);
  EXPECT_EQ(shown(json), "a list of 1");
}

}  // namespace
}  // namespace lockstep::inline v0::json_object_test
