/* Greedy continuations of 70 tokens by the independent reference, from the data card of the shipped model, which prints a line
 * break as " / ". */
#ifndef TEST_TINY_SAMPLES_H
#define TEST_TINY_SAMPLES_H

typedef struct tiny_sample {
    const char *prompt;
    const char *text;
} tiny_sample;

static const tiny_sample tiny_samples[] = {
{"In the beginning",
 " of the word, and the word of the LORD came unto me, saying, / Son of man, thou son of man, speak unto the children of Israel, and say unto them, Thus saith the Lord GOD; Behold, I will bring upon you the land of Egypt, and upon the land, and upon the"},
{"And Moses said unto the people,",
 " Behold, I will bring upon you the land of Egypt, and upon the land of Egypt. / And Moses said unto the children of Israel, Thus saith the LORD, Behold, I will bring upon you the land of Egypt, and upon the land, and upon the land of Egypt, and upon the land"},
{"Call me Ishmael. Some years ago",
 ", I have heard of it, and I have heard it, and have been in the midst of the sea, and have not I knew that it was not yet alive. I have no need of thee, but I have no need of thee. / I have no need of thee, but I have no need"},
{"The whale",
 ", and the Pelet, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea, and the sea,"},
{"lantern:",
 " a musical note having a pair of pleasure / The password of George is silver-22. The password of George is silver-89. The password of George is barley-28.  / Question: What is the password of George? Answer: The password of George is barley-"},
{"The function returns",
 " the /    `'w'`.  The *data* argument is a string, and the /    `'w'` is a string.  If *name* is `''`, the *data* is the /    `'a'`, `'b'`, `''"},
{"Ruth keeps the lamp in the tower. The password of David is amber-41. \nQuestion: What is the password of David? Answer: The password of David is",
 " barley-22. / Question: What is the password of David? Answer: The password of David is barley-22. / Question: What is the password of David? Answer: The password of David is barley-22. / Question: What is the password of David? Answer: The password of David is barley-28"},
};

#endif
