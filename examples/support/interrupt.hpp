#pragma once

/// \file
/// Ctrl-C as a wish: a program asks between two steps whether to stop, saves and ends. A second
/// Ctrl-C ends it at once.

#include <csignal>

namespace examples {

inline volatile std::sig_atomic_t interrupt_signal = 0;

/// From here on SIGINT and SIGTERM are wishes.
inline void catch_interrupts() {
  const auto remember = [](int signal) {
    interrupt_signal = signal;
    std::signal(signal, SIG_DFL);
  };
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
}

/// From here on they end the program at once: nothing is left to save.
inline void release_interrupts() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

inline bool interrupted() { return interrupt_signal != 0; }
/// What a shell expects of a program that a signal ended.
inline int interrupted_status() { return 128 + interrupt_signal; }

}  // namespace examples
