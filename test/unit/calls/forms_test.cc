#include "calls/forms.h"

#include <gtest/gtest.h>

#include "calls/form_values.h"

namespace abele::calls {
namespace {

using Order = std::vector<size_t>;

TEST(Forms, WhatIsOne) {
  for (const char* form : {"", "t", "-", "tt", "[t-[]]", "{1:at2:bc[t]}", "=3:abct", "=0:", "{}", "=4:]}=1"})
    EXPECT_TRUE(isForm(form)) << form;
  for (const char* text : {"x", "[", "]", "t]", "{t}", "{1:a}", "{1:a", "=", "=5:abc", "=x:abc", "=99999999999:a",
                           "{1:at", "[t}", "{9999999999999999999999:at}", "{1:at1:at}"})
    EXPECT_FALSE(isForm(text)) << text;
  EXPECT_FALSE(isForm(std::string(100000, '[') + std::string(100000, ']')));
}

TEST(Forms, ValuesAreATree) {
  const std::vector<FormValue> values = formValues("t{1:a[t-]2:bc=4:]}=1}");
  ASSERT_EQ(values.size(), 2U);
  EXPECT_EQ(values[0].kind, 't');
  ASSERT_EQ(values[1].items.size(), 2U);
  const auto& [key, list] = values[1].items[0];
  EXPECT_EQ(key, "a");
  ASSERT_EQ(list.items.size(), 2U);
  EXPECT_EQ(list.items[1].value.kind, '-');
  EXPECT_EQ(values[1].items[1].key, "bc");
  EXPECT_EQ(values[1].items[1].value.text, "]}=1");
}

TEST(Forms, TensorsAreMatchedByTheirKeys) {
  EXPECT_EQ(tensorOrder("tt", "tt"), (Order{0, 1}));
  EXPECT_EQ(tensorOrder("{1:xt4:maskt}t", "{4:maskt1:xt}t"), (Order{1, 0, 2}));
  EXPECT_EQ(tensorOrder("{1:b[tt]1:a{1:zt1:yt}}", "{1:a{1:yt1:zt}1:b[tt]}"), (Order{2, 3, 1, 0}));
  EXPECT_EQ(tensorOrder("=1:3t-", "=1:3t-"), (Order{0}));
  EXPECT_EQ(tensorOrder("", ""), Order{});
}

TEST(Forms, TensorsHaveNames) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(tensorNames("tt"), (Names{"0", "1"}));
  EXPECT_EQ(tensorNames("t"), Names{"0"});
  EXPECT_EQ(tensorNames("{1:xt4:mask[tt]}=3:2.0-t"), (Names{"0.x", "0.mask.0", "0.mask.1", "3"}));
  EXPECT_EQ(tensorNames("{1:xt4:mask{1:at}}"), (Names{"x", "mask.a"}));
  EXPECT_EQ(tensorNames("[t-t]"), (Names{"0", "2"}));
  EXPECT_EQ(tensorNames(""), Names{});
  EXPECT_EQ(tensorNames("=1:3"), Names{});
}

TEST(Forms, OtherDifferencesAreNoMatch) {
  for (const auto& [compiled, given] : std::vector<std::pair<const char*, const char*>>{
           {"t", ""},
           {"t", "tt"},
           {"t", "-"},
           {"[t]", "t"},
           {"[t]", "[tt]"},
           {"[tt]", "[t]"},
           {"=1:3", "=1:4"},
           {"{1:at}", "{1:bt}"},
           {"{1:at}", "{1:at1:bt}"},
           {"{1:at1:bt}", "{1:at}"},
       })
    EXPECT_EQ(tensorOrder(compiled, given), std::nullopt) << compiled << " " << given;
}

}  // namespace
}  // namespace abele::calls
