// The characters of a line or of a JSON text, as names, numbers and strings. Used by parser.cc.
#pragma once

#include <string>

#include "options/expression.h"

namespace abele::host {

enum class TextLanguage { kPython, kJson };

class Reader {
 protected:
  Reader(const std::string& text, TextLanguage language) : text_(text), language_(language) {}

  /// Bounds recursion: damaged text never exhausts the stack.
  struct Depth {
    explicit Depth(Reader& reader) : depth(reader.depth_) {
      if (++depth > 100) reader.fail("nested too deeply");
    }
    ~Depth() { --depth; }
    int& depth;
  };

  [[noreturn]] void fail(const std::string& what) const;
  static bool isNameStart(char c);
  static bool isDigit(char c);
  bool isPython() const { return language_ == TextLanguage::kPython; }
  char peek(size_t ahead = 0) const { return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0'; }
  /// At the end of the text, or at a comment?
  bool atEnd();
  void skipSpace();
  bool take(char c);
  void expect(char c);
  /// Takes a name such as "for" where exactly this one is next.
  bool takeWord(const std::string& word);
  bool isNextWord(const std::string& word);
  void requireMore(char open);
  std::string name();
  OptionValue number();
  /// What is between quotes; raw: backslashes stand for themselves.
  std::string string(bool raw = false);
  /// Behind a backslash.
  void escape(std::string& out);

  const std::string& text_;
  const TextLanguage language_;
  size_t position_ = 0;

 private:
  uint32_t hexadecimal(size_t digits);
  std::string codePoint(size_t digits);
  OptionValue wholeNumber(const std::string& digits, int base) const;

  int depth_ = 0;
};

}  // namespace abele::host
