#include "lockstep/report/tensorboard.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/report/protobuf_wire.h"
#include "lockstep/report/record_file.h"
#include "lockstep/report/tensorboard_events.h"

namespace lockstep::inline v0::tensorboard {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    text += two;
  }
  return text;
}

// RFC 3720, B.4, and the check value of the CRC catalogue.
TEST(RecordFile, Crc32cHasItsKnownAnswers) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up += static_cast<char>(i);
    down += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(up), 0x46dd794eu);
  EXPECT_EQ(crc32c(down), 0x113fdb5cu);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8u);
}

// The first record of every event file that TensorFlow has written since 2015, except for the time.
TEST(RecordFile, FramesAreTensorFlows) {
  const std::string record = framed_record("abc");
  ASSERT_EQ(record.size(), 8u + 4 + 3 + 4);
  EXPECT_EQ(hex(record.substr(0, 8)), "0300000000000000");
  EXPECT_EQ(record.substr(12, 3), "abc");
  // 24 bytes: a double, and "brain.Event:2".
  EXPECT_EQ(hex(framed_record(version_event(0)).substr(0, 12)), "1800000000000000a37f4b22");
}

// The examples of protobuf's own page on the encoding, and the limits of numbers.
TEST(ProtobufWire, IsTheDocumentedEncoding) {
  EXPECT_EQ(hex(Message().integer(1, 150).data()), "089601");
  EXPECT_EQ(hex(Message().bytes(2, "testing").data()), "120774657374696e67");
  EXPECT_EQ(hex(Message().message(3, Message().integer(1, 150)).data()), "1a03089601");
  EXPECT_EQ(hex(Message().integer(1, -2).data()), "08feffffffffffffffff01");
  EXPECT_EQ(hex(Message().integer(16, 0).data()), "800100");
  EXPECT_EQ(hex(Message().number(1, 1.0).data()), "09000000000000f03f");
  EXPECT_EQ(hex(Message().number(2, 1.0f).data()), "150000803f");
  const double two[] = {1.0, -2.0};
  EXPECT_EQ(hex(Message().packed(6, two).data()), "3210000000000000f03f00000000000000c0");
}

TEST(TensorBoardEvents, ScalarIsTheseBytes) {
  EXPECT_EQ(hex(scalar_event({.wall_time = 1.0, .step = 5}, "loss", 0.5f)),
            "09000000000000f03f"  // wall_time
            "1005"                // step
            "2a0d"                // summary
            "0a0b"                // value
            "0a046c6f7373"        // tag
            "150000003f");        // simple_value
  EXPECT_EQ(hex(restart_event({.wall_time = 0, .step = 300})), "09000000000000000010ac023a020801");
  EXPECT_EQ(hex(version_event(0)), "0900000000000000001a0d627261696e2e4576656e743a32");
}

TEST(TensorBoardEvents, PngIsAPng) {
  const std::vector<uint8_t> pixels = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::string png = png_image(pixels, 2, 2, 3);
  EXPECT_EQ(hex(png.substr(0, 8)), "89504e470d0a1a0a");
  EXPECT_EQ(hex(png.substr(8, 21)), "0000000d4948445200000002000000020802000000");
  // The rows are recovered, each after its filter's number.
  const size_t at = png.find("IDAT");
  ASSERT_NE(at, std::string::npos);
  std::string rows(14, '?');
  uLongf size = rows.size();
  ASSERT_EQ(uncompress(reinterpret_cast<Bytef*>(rows.data()), &size,
                       reinterpret_cast<const Bytef*>(png.data()) + at + 4,
                       static_cast<uLong>(png.size() - at - 4)),
            Z_OK);
  EXPECT_EQ(hex(rows), "00010203040506000708090a0b0c");
  EXPECT_THROW(png_image(pixels, 2, 2, 2), InvalidArgument);
  EXPECT_THROW(png_image(pixels, 2, 3, 3), InvalidArgument);
  EXPECT_THROW(png_image({}, 0, 0, 1), InvalidArgument);
}

TEST(TensorBoardWriter, WritersOfOneMomentHaveTheirOwnFiles) {
  const TestDirectory dir;
  TensorBoardWriter a(dir / "logs/run"), b(dir / "logs/run");
  EXPECT_NE(a.path(), b.path());
  EXPECT_EQ(a.path().filename().string().rfind("events.out.tfevents.", 0), 0u);
  EXPECT_GT(std::filesystem::file_size(a.path()), 0u) << "the version is there at once";
}

TEST(TensorBoardWriter, WritesWholeRecordsLateOrWhenTold) {
  const TestDirectory dir;
  TensorBoardWriter writer(dir.path(), {.flush_every = std::chrono::hours(1)});
  const auto before = std::filesystem::file_size(writer.path());
  writer.add_scalar("loss", 1, 1);
  EXPECT_EQ(std::filesystem::file_size(writer.path()), before);
  writer.flush();
  EXPECT_GT(std::filesystem::file_size(writer.path()), before);
  const auto flushed = std::filesystem::file_size(writer.path());
  writer.add_text("notes", std::string(100'000, 'x'), 1);
  EXPECT_GT(std::filesystem::file_size(writer.path()), flushed + 100'000) << "long enough";
  const auto path = writer.path();
  {
    const TensorBoardWriter moved(std::move(writer));
    EXPECT_EQ(moved.path(), path);
  }
}

TEST(TensorBoardWriter, NamesWhatItCannotWrite) {
  const TestDirectory dir;
  dir.write("file", "x");
  EXPECT_NE(
      message_of<SystemError>([&] { TensorBoardWriter(dir / "file/logs"); }).find("file/logs"),
      std::string::npos);
}

}  // namespace
}  // namespace lockstep::inline v0::tensorboard
