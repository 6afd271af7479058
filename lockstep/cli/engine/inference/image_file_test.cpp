#include "lockstep/cli/engine/inference/image_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/idx.h"
#include "lockstep/data/shapes.h"

namespace lockstep::inline v0::engine::image_file_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ImageFile, Pgm) {
  EXPECT_THAT(parse_pnm("P2 # text\n2 2\n# more\n10\n0 5 10 10\n", "f").pixels,
              ElementsAre(0, 128, 255, 255));
  const Picture image = parse_pnm(std::string("P5 3 1 255\n\x01\x02\xff", 14), "f");
  EXPECT_EQ(image.width, 3);
  EXPECT_THAT(image.pixels, ElementsAre(1, 2, 255));
  EXPECT_THAT(parse_pnm(std::string("P5 1 1 65535\n\x80\x00", 15), "f").pixels, ElementsAre(128));
  for (const char* bad : {"", "P4 1 1 1\n1", "P6 1 1 1\n11", "P5", "P5 1 1 0\n1", "P5 0 1 1\n",
                          "P5 65536 65536 255\n", "P5 2 1 255\n1", "P2 2 1 9\n1", "P2 1 1 9\n10",
                          "P2 1 1 9\nx", "P2 99999999999999999999 1 1\n1"}) {
    EXPECT_THAT(message_of<DataError>([&] { parse_pnm(bad, "f"); }), StartsWith("f: ")) << bad;
  }
}

TEST(ImageFile, Ppm) {
  const Picture text = parse_pnm("P3 2 1 10\n0 5 10  10 0 5\n", "f");
  EXPECT_EQ(text.channels, 3);
  EXPECT_THAT(text.pixels, ElementsAre(0, 255, 128, 0, 255, 128));
  EXPECT_THAT(parse_pnm("P6 2 1 255\nabcdef", "f").pixels,
              ElementsAre('a', 'd', 'b', 'e', 'c', 'f'));
  // Green is the brightest; blue counts as dark here.
  EXPECT_EQ(draw_image(parse_pnm("P3 3 1 9\n 9 0 0  0 9 0  0 0 9", "f")), "  ::++\n");
}

TEST(ImageFile, CifarByIndex) {
  const TestDirectory dir;
  data::generate_shapes(dir.path(), {.train = 3, .test = 2, .seed = 1});
  const Picture picture = read_image(dir / "train.bin", 2);
  EXPECT_EQ(picture.channels, 3);
  EXPECT_EQ(picture.height, 32);
  const std::string bytes = dir.read("train.bin");
  EXPECT_EQ(std::string(picture.pixels.begin(), picture.pixels.end()), bytes.substr(2 * 3073 + 1));
  EXPECT_THAT(message_of<DataError>([&] { read_image(dir / "train.bin", 3); }),
              HasSubstr("has 3 pictures, so there is no number 3"));
}

TEST(ImageFile, IdxByIndex) {
  const TestDirectory dir;
  const std::vector<uint8_t> values{1, 2, 3, 4, 5, 6, 7, 8};
  data::write_idx(dir / "many", std::vector<int64_t>{2, 2, 2}, values);
  EXPECT_THAT(read_image(dir / "many", 1).pixels, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(message_of<DataError>([&] { read_image(dir / "many", 2); }),
              HasSubstr("has 2 pictures, so there is no number 2"));
  data::write_idx(dir / "one", std::vector<int64_t>{2, 4}, values);
  EXPECT_EQ(read_image(dir / "one", 0).width, 4);
  data::write_idx(dir / "flat", std::vector<int64_t>{8}, values);
  EXPECT_THAT(message_of<DataError>([&] { read_image(dir / "flat", 0); }), HasSubstr("1 dims"));
  dir.write("a.pgm", "P2 1 1 255 9");
  EXPECT_THAT(read_image(dir / "a.pgm", 0).pixels, ElementsAre(9));
  EXPECT_THAT(message_of<DataError>([&] { read_image(dir / "a.pgm", 1); }),
              HasSubstr("one picture"));
  EXPECT_THAT(message_of<DataError>([&] { read_image(dir / "none", 0); }),
              HasSubstr("none: cannot be read"));
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  for (const std::filesystem::path& no_file : {dir.path(), std::filesystem::path(dir / "pipe")})
    EXPECT_THAT(message_of<DataError>([&] { read_image(no_file, 0); }),
                HasSubstr("cannot be read"));
}

TEST(ImageFile, DrawnWithoutItsMargin) {
  Picture image{4, 4, std::vector<uint8_t>(16, 0), 1};
  image.pixels[5] = 255;
  image.pixels[10] = 140;
  EXPECT_EQ(draw_image(image), "  @@\n    ++\n");
  EXPECT_EQ(draw_image({2, 2, {0, 0, 0, 0}, 1}), "");
}

}  // namespace lockstep::inline v0::engine::image_file_test
