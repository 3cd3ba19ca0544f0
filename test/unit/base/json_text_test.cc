#include "base/json_text.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace {

using abele::JsonFault;
using abele::JsonText;

JsonFault faultOf(const std::string& text) {
  try {
    JsonText given(text);
  } catch (const JsonFault& fault) {
    return fault;
  }
  return {0, ""};
}

TEST(JsonText, KnowsWhereItsValuesWere) {
  const JsonText text("{\"a\": 1,\n\"b\": [true,\n{\"c\": \"x\"\n}\n],\n\"d\": null}");
  const JsonText::Json& root = text.root();
  EXPECT_EQ(text.placeOf(root), "line 1");
  EXPECT_EQ(text.placeOf(root["a"]), "line 1, a");
  EXPECT_EQ(text.placeOf(root["b"]), "line 2, b");
  EXPECT_EQ(text.placeOf(root["b"][1]["c"]), "line 3, b[1].c");
  EXPECT_EQ(text.placeOf(root["d"]), "line 6, d");
  EXPECT_EQ(text.placeOf(JsonText::Json(1)), "");
}

TEST(JsonText, SaysWhatIsNoJson) {
  const std::tuple<std::string, int64_t, const char*> cases[] = {
      {"", 1, "unexpected end of input"},
      {"{\n\"a\": x}", 2, "invalid literal"},
      {"[1,\n2]\n]", 3, "expected end of input"},
      {"[1,\n1e999]", 2, "1e999"},
      {"[\"\xff\"]", 1, "ill-formed UTF-8"},
      {"{\"a\": {\"b\": 1,\n\"b\": 2}}", 2, "\"b\" twice in one object"},
      {std::string("[1,\n\0]", 6), 2, "a character of value 0"},
      {std::string(33, '['), 1, "more than 32 levels"},
      {std::string(100'000, '['), 1, "more than 32 levels"}};
  for (const auto& [text, line, found] : cases) {
    const JsonFault fault = faultOf(text);
    EXPECT_EQ(fault.line, line) << found;
    EXPECT_NE(fault.found.find(found), std::string::npos) << fault.found;
    EXPECT_TRUE(abele::boundedJson(text).is_discarded());
  }
  EXPECT_LT(faultOf("\"" + std::string(100'000, 'a')).found.size(), 300u);
}

TEST(JsonText, TakesTheSameNameInTwoObjects) {
  EXPECT_EQ(abele::boundedJson("[{\"a\": {\"a\": 1}}, {\"a\": 2}]").dump(), "[{\"a\":{\"a\":1}},{\"a\":2}]");
  EXPECT_EQ(faultOf(std::string(32, '[') + std::string(32, ']')).line, 0);
}

}  // namespace
