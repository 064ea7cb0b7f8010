// GoogleTest with the containers of libstdc++'s debug mode, for programs that also use them.
#include <src/gtest-all.cc>
